//! What Kubernetes says of values that do not fit a type when they were merged as plain data (strategic merges,
//! applies) rather than decoded from a body.

/// A decoder's complaint in those words.
pub fn words(complaint: &str) -> String {
    if complaint.starts_with("illegal base64 data") {
        return format!("error decoding from json: {complaint}");
    }
    let parts = complaint
        .strip_prefix("json: cannot unmarshal ")
        .and_then(|rest| rest.split_once(" into Go "))
        .and_then(|(found, rest)| Some((found, rest.rsplit_once(" of type ")?.1)));
    let Some((found, wanted)) = parts else { return complaint.to_owned() };
    let found = match found.split(' ').next().unwrap_or_default() {
        "array" => "slice",
        "object" => "map",
        "number" if found.contains('.') => "float64",
        "number" => "int64",
        other => other,
    };
    let scalar = matches!(found, "int64" | "float64" | "string" | "bool");
    if wanted.starts_with("[]") {
        return format!("cannot restore slice from {found}");
    }
    if wanted.starts_with("map[") || wanted.ends_with("ResourceList") {
        return format!("cannot restore map from {found}");
    }
    match wanted {
        "string" if found == "int64" => "cannot convert int64 to string".to_owned(),
        "int32" | "int64" if found == "float64" => format!("cannot convert float64 to {wanted}"),
        "string" | "bool" | "int32" | "int64" | "float64" => format!("unrecognized type: {wanted}"),
        // A type with a name: a map fits into every struct, so this one is a text.
        _ if found == "map" => "unrecognized type: string".to_owned(),
        _ if found == "int64" => format!("cannot convert int64 to {wanted}"),
        _ if scalar => "unrecognized type: string".to_owned(),
        _ => format!("cannot restore struct from: {found}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints() {
        for (decoder, said) in [
            (
                "array into Go struct field Service.metadata of type v1.ObjectMeta",
                "cannot restore struct from: slice",
            ),
            (
                "object into Go struct field PodSpec.spec.containers of type []v1.Container",
                "cannot restore slice from map",
            ),
            (
                "array into Go struct field ResourceQuotaSpec.spec.hard of type v1.ResourceList",
                "cannot restore map from slice",
            ),
            ("number into Go struct field Event.reason of type string", "cannot convert int64 to string"),
            ("string into Go struct field X.spec.maxReplicas of type int32", "unrecognized type: int32"),
        ] {
            assert_eq!(words(&format!("json: cannot unmarshal {decoder}")), said);
        }
        assert_eq!(
            words("illegal base64 data at input byte 0"),
            "error decoding from json: illegal base64 data at input byte 0"
        );
        assert_eq!(words("parsing time \"bad\""), "parsing time \"bad\"");
    }
}
