//! Discovery documents, as far as kubectl needs them to find what the server keeps.

use serde_json::{Value, json};

use super::resource::{ALL, Resource};

/// The document at this path, if there is one.
pub(super) fn answer(path: &str) -> Option<Value> {
    match path {
        "/api" => Some(json!({"kind": "APIVersions", "versions": ["v1"]})),
        "/apis" => {
            let mut groups: Vec<&str> = ALL.iter().map(|resource| resource.group).collect();
            groups.sort_unstable();
            groups.dedup();
            let groups: Vec<Value> = groups
                .into_iter()
                .filter(|group| !group.is_empty())
                .map(describe)
                .collect();
            Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}))
        }
        "/api/v1" => Some(list("")),
        path => {
            let group = path.strip_prefix("/apis/")?;
            let (group, version) = group.split_once('/').map_or((group, ""), |found| found);
            ALL.iter().find(|resource| resource.group == group)?;
            match version {
                "" => {
                    let mut document = describe(group);
                    document["kind"] = "APIGroup".into();
                    document["apiVersion"] = "v1".into();
                    Some(document)
                }
                "v1" => Some(list(group)),
                _ => None,
            }
        }
    }
}

fn describe(group: &str) -> Value {
    let version = json!({"groupVersion": format!("{group}/v1"), "version": "v1"});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

fn list(group: &str) -> Value {
    let of_group = || ALL.iter().filter(|resource| resource.group == group);
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
    for resource in of_group() {
        resources.push(entry(resource, resource.plural.into()));
        for part in resource.subresources {
            resources.push(entry(resource, format!("{}/{part}", resource.plural)));
        }
    }
    let version = of_group()
        .next()
        .map_or_else(|| "v1".into(), |resource| resource.api_version());
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": version, "resources": resources,
    })
}
