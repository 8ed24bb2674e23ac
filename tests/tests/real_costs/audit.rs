//! An API server's audit log, and the controller's requests in this log.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use kubelet_authenticator_test_support::process::Scratch;
use serde_json::Value;

/// The audit policy: the metadata of requests, but not their bodies.
const POLICY: &str = r#"{
    "apiVersion": "audit.k8s.io/v1", "kind": "Policy",
    "rules": [{"level": "Metadata"}], "omitStages": ["RequestReceived"]
}"#;

/// An API server's audit log.
#[derive(Debug)]
pub struct Audit {
    log: PathBuf,
    policy: PathBuf,
    user: &'static str,
    _files: Scratch,
}

/// For each verb and resource, with its subresource, the number of calls.
pub type Calls = BTreeMap<(String, String), usize>;

/// A position in a log.
#[derive(Debug, Clone, Copy)]
pub struct Mark(usize);

impl Audit {
    /// Creates the log of the requests from `user`.
    pub fn of(user: &'static str) -> Self {
        let files = Scratch::new("audit");
        Self {
            log: files.join("audit.log"),
            policy: files.write("policy.json", POLICY),
            user,
            _files: files,
        }
    }

    /// The flags that make an API server write the log.
    pub fn flags(&self) -> [String; 2] {
        [
            format!("--audit-policy-file={}", self.policy.display()),
            format!("--audit-log-path={}", self.log.display()),
        ]
    }

    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        // The last line can be incomplete.
        let lines = text
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines.collect()
    }

    /// The current end of the log.
    pub fn mark(&self) -> Mark {
        Mark(self.lines().len())
    }

    /// The controller's requests since the mark, except requests that do not depend on joins.
    pub fn since(&self, mark: Mark) -> Calls {
        let mut calls = Calls::new();
        for line in self.lines().iter().skip(mark.0) {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let verb = text(&line["verb"]);
            let object = &line["objectRef"];
            if line["user"]["username"] != self.user || is_upkeep(&verb, object) {
                continue;
            }
            let resource = match object["subresource"].as_str() {
                Some(subresource) => format!("{}/{subresource}", text(&object["resource"])),
                None => text(&object["resource"]),
            };
            *calls.entry((verb, resource)).or_default() += 1;
        }
        calls
    }
}

/// Whether the request does not depend on the number of joins. This is true for the requests of periodic tasks and of
/// leader election, for watches, and for the lists before a watch.
fn is_upkeep(verb: &str, object: &Value) -> bool {
    let resource = object["resource"].as_str().unwrap_or_default();
    let of_a_node = object["namespace"] == "kube-node-lease";
    match resource {
        "leases" => !of_a_node,
        "certificatesigningrequests" | "nodeidentities" | "events" | "nodes" | "machines" => {
            ["watch", "list"].contains(&verb)
        }
        _ => true,
    }
}

/// The calls as a map.
pub fn calls<const N: usize>(calls: [(&str, &str, usize); N]) -> Calls {
    let calls = calls.into_iter();
    calls
        .map(|(verb, resource, count)| ((verb.to_owned(), resource.to_owned()), count))
        .collect()
}
