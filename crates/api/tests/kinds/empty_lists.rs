//! Required lists and maps that are empty are read from the store as `null`.

use machinery::codec::typed;
use serde_json::json;

#[test]
fn empty_required_lists_are_stored_as_null() {
    let schema = api::schema::schema().kind("storage.k8s.io", "v1", "CSINode").expect("a built-in kind");
    let mut node = json!({"metadata": {"labels": {}}, "spec": {"drivers": [
        {"name": "a", "nodeID": "n", "topologyKeys": []}, {"name": "b", "nodeID": "n", "topologyKeys": ["z"]},
    ]}});
    typed::normalize_for_storage(&mut node, schema).expect("valid");
    assert_eq!(node["spec"]["drivers"][0]["topologyKeys"], json!(null));
    assert_eq!(node["spec"]["drivers"][1]["topologyKeys"], json!(["z"]));
    node["spec"]["drivers"] = json!([]);
    typed::normalize_for_storage(&mut node, schema).expect("valid");
    assert_eq!(node, json!({"metadata": {}, "spec": {"drivers": null}}));
}
