//! Warnings about volumes: removed plugins, files that hide each other.

use super::warn_claim_spec;
use crate::value::Fields;
use machinery::Value;
use machinery::field::Path;

/// Sources that no longer work, in the order of the warnings; one has a different name in its path.
const GONE: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

pub fn warn_volumes(spec: &Value, path: &Path<'_>, warnings: &mut Vec<String>) {
    let path = path.child("volumes");
    for (index, volume) in spec.items("volumes").iter().enumerate() {
        let item = path.index(index);
        for (name, shown, message) in GONE {
            if volume.has(name) {
                warnings.push(format!("{}: {message}", item.child(shown)));
            }
        }
        let template = volume.field("ephemeral").field("volumeClaimTemplate");
        if !template.is_null() {
            let ephemeral = item.child("ephemeral");
            let path = ephemeral.child("volumeClaimTemplate");
            warn_claim_spec(template.field("spec"), &path.child("spec"), warnings);
        }
    }
    for volume in spec.items("volumes") {
        warn_overlaps(volume, warnings);
    }
}

/// A file and its source.
struct File {
    path: String,
    source: String,
}

impl File {
    fn shown(&self) -> String {
        if self.source.is_empty() {
            format!("{:?}", self.path)
        } else {
            format!("{:?} ({})", self.path, self.source)
        }
    }

    /// True if the files are the same, or one is inside the other.
    fn overlaps(&self, other: &File) -> bool {
        let inside =
            |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'));
        self.path == other.path || inside(&self.path, &other.path) || inside(&other.path, &self.path)
    }
}

fn warn_overlaps(volume: &Value, warnings: &mut Vec<String>) {
    let name = volume.text("name");
    for (source, description) in [
        ("configMap", format!("ConfigMap {:?}", volume.field("configMap").text("name"))),
        ("secret", format!("Secret {:?}", volume.field("secret").text("secretName"))),
        ("downwardAPI", "DownwardAPI".to_owned()),
    ] {
        let files = files(volume.field(source), "");
        if !files.is_empty() {
            warn_files(name, &description, files, warnings);
        }
    }
    let mut all = Vec::new();
    for source in volume.field("projected").items("sources") {
        if source.as_object().is_none_or(|map| map.values().all(Value::is_null)) {
            warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            continue;
        }
        let (config_map, secret) = (source.field("configMap"), source.field("secret"));
        if config_map.has("items") {
            all.extend(files(config_map, &format!("ConfigMap {:?}", config_map.text("name"))));
        } else if secret.has("items") {
            all.extend(files(secret, &format!("Secret {:?}", secret.text("name"))));
        } else if source.field("downwardAPI").has("items") {
            all.extend(files(source.field("downwardAPI"), "DownwardAPI"));
        } else if source.has("serviceAccountToken") {
            let path = source.field("serviceAccountToken").text("path").to_owned();
            all.push(File { path, source: "ServiceAccountToken".to_owned() });
        }
    }
    warn_files(name, "Projected", all, warnings);
}

fn files(source: &Value, description: &str) -> Vec<File> {
    let items = source.items("items").iter();
    items.map(|item| File { path: item.text("path").to_owned(), source: description.to_owned() }).collect()
}

fn warn_files(volume: &str, description: &str, mut files: Vec<File>, warnings: &mut Vec<String>) {
    for file in &mut files {
        file.path.truncate(file.path.trim_end_matches('/').len());
    }
    for (index, file) in files.iter().enumerate() {
        if file.path.is_empty() {
            continue;
        }
        for other in files[..index].iter().filter(|other| !other.path.is_empty() && file.overlaps(other)) {
            warnings.push(format!(
                "volume {volume:?} ({description}): overlapping paths: {} with {}",
                file.shown(),
                other.shown()
            ));
        }
    }
}
