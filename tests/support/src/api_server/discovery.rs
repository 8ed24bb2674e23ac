//! Discovery documents, with the content that kubectl and kube need to find the server's resources.

use serde_json::{Value, json};

use super::resource::Resource;

/// The document at this path, if it exists.
pub(super) fn answer(known: &[&Resource], path: &str) -> Option<Value> {
    match path {
        "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let mut groups: Vec<&str> = known.iter().map(|resource| resource.group).collect();
            groups.sort_unstable();
            groups.dedup();
            let groups: Vec<Value> = groups
                .into_iter()
                .filter(|group| !group.is_empty())
                .filter_map(|group| describe(known, group))
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        "/api/v1" => list(known, "", "v1"),
        path => {
            let group = path.strip_prefix("/apis/")?;
            if let Some((group, version)) = group.split_once('/') {
                return list(known, group, version);
            }
            let mut document = describe(known, group)?;
            document["kind"] = "APIGroup".into();
            document["apiVersion"] = "v1".into();
            Some(document)
        }
    }
}

/// A group and its versions. The version that is defined first is preferred.
fn describe(known: &[&Resource], group: &str) -> Option<Value> {
    let mut versions: Vec<Value> = Vec::new();
    for resource in known.iter().filter(|resource| resource.group == group) {
        let version = resource.version;
        let version = json!({"groupVersion": format!("{group}/{version}"), "version": version});
        if !versions.contains(&version) {
            versions.push(version);
        }
    }
    let preferred = versions.first()?.clone();
    Some(json!({"name": group, "versions": versions, "preferredVersion": preferred}))
}

fn list(known: &[&Resource], group: &str, version: &str) -> Option<Value> {
    let of_version = |resource: &&&Resource| (resource.group, resource.version) == (group, version);
    let verbs = [
        "create", "delete", "get", "list", "patch", "update", "watch",
    ];
    let entry = |resource: &Resource, name: String| {
        let short = (name == "certificatesigningrequests").then_some("csr");
        json!({
            "name": name, "singularName": resource.kind.to_lowercase(), "kind": resource.kind,
            "namespaced": resource.namespaced, "verbs": verbs,
            "shortNames": short.map(|short| vec![short]).unwrap_or_default(),
        })
    };
    let mut resources: Vec<Value> = Vec::new();
    for resource in known.iter().filter(of_version) {
        resources.push(entry(resource, resource.plural.into()));
        for part in resource.subresources {
            resources.push(entry(resource, format!("{}/{part}", resource.plural)));
        }
    }
    let group_version = known.iter().find(of_version)?.api_version();
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": group_version, "resources": resources,
    }))
}
