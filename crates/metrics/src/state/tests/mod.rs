//! Series of each kind, compared with the text that they should have.

mod cluster;
mod network;
mod pods;
mod scrape;
mod storage;
mod workloads;

use super::config::{AllowList, FamilyFilter, StateMetricsConfig};
use super::family::Stability;
use super::kinds::KINDS;
use super::page::{Compressor, Text};
use super::render::Section;
use super::series::InvalidSchedule;
use jiff::Timestamp;
use serde_json::{Value, json};

/// A schedule that is due an hour after any time, or is invalid.
pub fn next_schedule(
    schedule: &str,
    _: Option<&str>,
    after: Timestamp,
) -> Result<Option<Timestamp>, InvalidSchedule> {
    match schedule {
        "hourly" => Ok(Timestamp::from_second(after.as_second() + 3600).ok()),
        _ => Err(InvalidSchedule),
    }
}

/// The section of a resource with these objects, headers included.
fn section(resource: &str, objects: &[Value], config: &StateMetricsConfig) -> String {
    let kind = KINDS.iter().find(|kind| kind.resource == resource).expect("a kind");
    let mut compressor = Compressor::default();
    let mut section = Section::new(kind, config, next_schedule);
    for object in objects {
        section.add(object.to_string().as_bytes(), &mut compressor).expect("an object");
    }
    let mut page = Text::default();
    section.append_to(&mut page, &mut compressor);
    page.finish(&mut compressor).text()
}

fn lines_of(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Compares all series of an object with lines, in which `ID` stands for the labels of its identity.
#[track_caller]
pub fn expect(resource: &str, identity: &str, object: Value, want: &str) {
    let got = lines_of(&section(resource, &[object], &StateMetricsConfig::default()));
    let want = want.lines().map(str::trim).filter(|line| !line.is_empty());
    let want: Vec<_> = want.map(|line| line.replacen("ID", identity, 1)).collect();
    assert_eq!(got, want, "got:\n{}", got.join("\n"));
}

#[test]
fn families_are_those_of_kube_state_metrics() {
    let names = KINDS.iter().flat_map(|kind| kind.families.iter());
    let got: Vec<_> = names
        .map(|one| {
            let kind = if one.is_counter { "counter" } else { "gauge" };
            let stability = if one.stability == Stability::Stable { "stable" } else { "alpha" };
            let opt_in = if one.is_opt_in { " opt-in" } else { "" };
            format!("{} {kind} {stability}{opt_in}", one.name)
        })
        .collect();
    let want: Vec<_> = include_str!("families.txt").lines().collect();
    assert_eq!(got, want);
    assert!(KINDS.is_sorted_by_key(|kind| kind.resource));
}

#[test]
fn family_without_series_has_its_header() {
    let text = section("configmaps", &[json!({"metadata": {"name": "a"}})], &StateMetricsConfig::default());
    assert!(text.contains("# HELP kube_configmap_info [STABLE] "), "{text}");
    assert!(text.contains("# TYPE kube_configmap_labels gauge\n# HELP"), "{text}");
    assert_eq!(section("configmaps", &[], &StateMetricsConfig::default()), "");
}

#[test]
fn allow_lists_show_labels_and_annotations() {
    let object = json!({"metadata": {"name": "a", "namespace": "n",
        "labels": {"app": "x", "App": "y", "other": "z"}, "annotations": {"owner.io/Team": "t"}}});
    let config = StateMetricsConfig {
        labels: AllowList::parse("configmaps=[App,app,absent]").expect("valid"),
        annotations: AllowList::parse("*=[*]").expect("valid"),
        families: FamilyFilter::new(&["(labels|annotations)$".to_owned()], &[], &[]).expect("valid"),
        ..StateMetricsConfig::default()
    };
    let want = [
        r#"kube_configmap_annotations{namespace="n",configmap="a",annotation_owner_io_team="t"} 1"#,
        r#"kube_configmap_labels{namespace="n",configmap="a",label_app_conflict1="y",label_app_conflict2="x"} 1"#,
    ];
    assert_eq!(lines_of(&section("configmaps", &[object], &config)), want);
}

#[test]
fn hostile_names_stay_inside_their_labels() {
    let hostile = "x\"} 1\nkube_pod_info{pod=\"forged\\";
    let object = json!({"metadata": {"name": hostile, "namespace": "n", "uid": "u",
        "labels": {"a\"} 1\n": hostile}, "ownerReferences": "none", "creationTimestamp": 7},
        "spec": {"containers": [{"name": hostile, "resources": {"limits": {"cpu": "1e999", "memory": [1]}}}],
                 "tolerations": [{"tolerationSeconds": hostile}], "nodeName": null},
        "status": {"phase": hostile, "podIPs": [{"ip": "not an address"}], "conditions": [1, null, "x"],
                   "containerStatuses": {"0": 1}}});
    let config = StateMetricsConfig {
        labels: AllowList::parse("pods=[*]").expect("valid"),
        ..StateMetricsConfig::default()
    };
    for line in lines_of(&section("pods", &[object], &config)) {
        let (name, rest) = line.split_once('{').expect("labels");
        assert!(
            name.starts_with("kube_pod_") && name.bytes().all(|one| one.is_ascii_lowercase() || one == b'_')
        );
        let (labels, value) = rest.rsplit_once("} ").expect("a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
        let escaped = hostile.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"");
        assert!(labels.starts_with(&format!("namespace=\"n\",pod=\"{escaped}\",uid=\"u\"")), "{line}");
    }
}

#[test]
fn contents_of_secrets_are_not_decoded() {
    let object = json!({"type": "Opaque", "data": {"password": "aHVudGVyMg=="}, "metadata": {"name": "s",
        "managedFields": [{"fieldsV1": {"f:data": {"f:password": {}}}}]}});
    let decoded = super::object::decode(object.to_string().as_bytes()).expect("an object");
    assert_eq!(decoded, json!({"type": "Opaque", "metadata": {"name": "s"}}));
    let config = StateMetricsConfig {
        annotations: AllowList::parse("*=[*]").expect("valid"),
        ..StateMetricsConfig::default()
    };
    let text = section("secrets", &[object], &config);
    assert!(text.contains("type=\"Opaque\"") && !text.contains("aHVudGVyMg") && !text.contains("password"));
}
