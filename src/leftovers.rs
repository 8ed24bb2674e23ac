//! Settings of earlier versions, in sources that are ignored: environment variables, and the
//! `client.authentication.k8s.io/exec` extension of a kubeconfig's cluster.
//!
//! They are named, and no error: a leftover must not cost a node its certificate, and other programs
//! share the environment. No message has their values.

use std::ffi::OsString;
use std::path::Path;

use serde::Deserialize;
use serde_json::Value;

use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::read_text;
use crate::settings::{CONFIG_FILE, ProviderSchema};

/// The prefix of the variables.
pub(crate) const VARIABLE_PREFIX: &str = "KUBELET_AUTHENTICATOR_";

/// The name of the extension.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Settings in ignored sources.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leftovers {
    /// Each place with its successor.
    places: Vec<String>,
}

impl Leftovers {
    /// Adds the variables of an environment that have our prefix.
    #[must_use]
    pub(crate) fn in_environment(
        mut self,
        names: impl Iterator<Item = OsString>,
        schema: &ProviderSchema,
    ) -> Self {
        let ours = names.filter_map(|name| {
            let suffix = name.to_str()?.strip_prefix(VARIABLE_PREFIX)?;
            Some(suffix.to_owned())
        });
        for suffix in ours {
            self.add(format!(
                "{VARIABLE_PREFIX}{suffix}{}",
                successor(&suffix, schema)
            ));
        }
        self
    }

    /// Adds the settings in an extension.
    #[must_use]
    pub(crate) fn in_extension(mut self, place: &str, json: &str, schema: &ProviderSchema) -> Self {
        if let Ok(extension) = serde_json::from_str(json) {
            self.add_extension(place, &extension, schema);
        }
        self
    }

    /// Adds the variables and extensions of a kubeconfig.
    #[must_use]
    pub(crate) fn in_kubeconfig(mut self, path: &Path, schema: &ProviderSchema) -> Self {
        let document = read_text(path).ok();
        let document = document.and_then(|text| serde_saphyr::from_str::<Document>(&text).ok());
        let Some(document) = document else {
            return self;
        };
        let users = document.users.into_iter().flatten();
        let variables = users.filter_map(|user| user.user?.exec?.env).flatten();
        let clusters = document.clusters.into_iter().flatten();
        let extensions = clusters
            .filter_map(|cluster| cluster.cluster?.extensions)
            .flatten();
        for extension in extensions.filter(|extension| extension.name == EXTENSION) {
            self.add_extension(&path.display().to_string(), &extension.extension, schema);
        }
        self.in_environment(variables.map(|variable| variable.name.into()), schema)
    }

    fn add_extension(&mut self, place: &str, extension: &Value, schema: &ProviderSchema) {
        let Some(members) = extension.as_object().filter(|members| !members.is_empty()) else {
            return;
        };
        let keys: Vec<_> = schema
            .entries()
            .map(|entry| entry.name)
            .chain(schema.removed().map(|removed| removed.key))
            .filter(|name| {
                let (section, key) = name.split_once('.').unwrap_or(("", name));
                match section {
                    "" => members.contains_key(key),
                    section => members.get(section).is_some_and(|it| it.get(key).is_some()),
                }
            })
            .collect();
        let keys = match keys.as_slice() {
            [] => String::new(),
            keys => format!(" (keys {})", keys.join(", ")),
        };
        self.add(format!("the exec extension in {place}{keys}"));
    }

    fn add(&mut self, place: String) {
        if !self.places.contains(&place) {
            self.places.push(place);
        }
    }

    /// The ignored settings, with the cure. `None` without any.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if self.places.is_empty() {
            return None;
        }
        let what = format!(
            "environment variables and exec extensions are not settings, and are ignored: {}",
            self.places.join(", ")
        );
        let cure = format!(
            "set the keys in {CONFIG_FILE} or in a drop-in in config.d beside it, and remove these"
        );
        Some(Failure::new(Code::Configuration, what, cure))
    }
}

/// The successor of the variable with this suffix after the prefix, in parentheses.
fn successor(suffix: &str, schema: &ProviderSchema) -> String {
    let flag = suffix.to_ascii_lowercase().replace('_', "-");
    if flag == "config" {
        return " (option --config)".to_owned();
    }
    if let Some(entry) = schema.entries().find(|entry| entry.flag == flag) {
        return format!(" (key {})", entry.name);
    }
    let removed = schema.removed().find(|removed| removed.flag == flag);
    removed.map_or_else(String::new, |removed| format!(" ({})", removed.why()))
}

/// The parts of a kubeconfig that once had settings.
#[derive(Deserialize)]
struct Document {
    clusters: Option<Vec<NamedCluster>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedCluster {
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct Cluster {
    extensions: Option<Vec<Extension>>,
}

#[derive(Deserialize)]
struct Extension {
    name: String,
    #[serde(default)]
    extension: Value,
}

#[derive(Deserialize)]
struct NamedUser {
    user: Option<User>,
}

#[derive(Deserialize)]
struct User {
    exec: Option<Exec>,
}

#[derive(Deserialize)]
struct Exec {
    env: Option<Vec<Variable>>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kubelet_attestation::names::Provider;

    use super::*;

    fn schema() -> ProviderSchema {
        ProviderSchema {
            provider: Provider::TPM,
            settings: &[],
            expiration_seconds: 3600,
        }
    }

    fn what(leftovers: &Leftovers) -> String {
        let failure = leftovers.failure();
        failure.map_or_else(String::new, |failure| failure.what().to_owned())
    }

    #[test]
    fn a_variable_with_our_prefix_is_named_with_its_successor() {
        let of = |name: &str| {
            let names = [name.into(), "HTTPS_PROXY".into()].into_iter();
            let what = what(&Leftovers::default().in_environment(names, &schema()));
            what.split_once("are ignored: ")
                .map(|(_, places)| places.to_owned())
        };
        for (name, successor) in [
            ("KUBELET_AUTHENTICATOR_NODE_NAME", " (key nodeName)"),
            ("KUBELET_AUTHENTICATOR_CONFIG", " (option --config)"),
            (
                "KUBELET_AUTHENTICATOR_TIMEOUT_SECONDS",
                " (the setting was removed: a run without a valid credential has 60 seconds)",
            ),
            ("KUBELET_AUTHENTICATOR_NODENAME", ""),
        ] {
            assert_eq!(of(name), Some(format!("{name}{successor}")));
        }
        assert_eq!(of("PATH"), None);
    }

    #[test]
    fn an_extension_with_members_is_named_with_its_keys_and_no_value() {
        let of = |json: &str| what(&Leftovers::default().in_extension("x", json, &schema()));

        let given = r#"{"nodeName": "secret", "tpm": {"deviceProgram": "/p"}, "other": 1}"#;
        let named = of(given);
        assert!(
            named.ends_with("the exec extension in x (keys nodeName, tpm.deviceProgram)"),
            "{named}"
        );
        assert!(!named.contains("secret"), "{named}");
        assert!(of(r#"{"other": 1}"#).ends_with("the exec extension in x"));
        for nothing in ["{}", "null", "[1]", "no JSON"] {
            assert_eq!(of(nothing), "", "{nothing}");
        }
    }

    #[test]
    fn a_kubeconfig_is_searched_for_variables_and_extensions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.conf");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            what(&Leftovers::default().in_kubeconfig(&path, &schema()))
        };
        let found = of("clusters:\n- cluster:\n    extensions:\n    \
             - {name: client.authentication.k8s.io/exec, extension: {audience: a}}\n    \
             - {name: other, extension: {nodeName: a}}\n\
             users:\n- user:\n    exec:\n      env:\n      \
             - {name: KUBELET_AUTHENTICATOR_AUDIENCE, value: secret}\n");

        let extension = format!("the exec extension in {} (keys audience)", path.display());
        let variable = "KUBELET_AUTHENTICATOR_AUDIENCE (key audience)";
        assert!(
            found.ends_with(&format!("{extension}, {variable}")),
            "{found}"
        );
        assert_eq!(of("clusters: []\nusers:\n- user: {token: a}\n"), "");
        assert_eq!(of("{"), "");
    }
}
