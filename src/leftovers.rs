//! Settings from earlier versions, in sources that the plugin ignores: environment variables, and the
//! `client.authentication.k8s.io/exec` extension of a kubeconfig's cluster.
//!
//! Such a setting causes only a warning, because an old setting must not prevent a certificate, and because other
//! programs can use the same environment. Messages contain the name of a setting, but not its value.

use std::ffi::OsString;
use std::path::Path;

use kubelet_attestation::kubeconfig::first_document;
use serde_json::Value;

use crate::failure::{Code, Failure};
use crate::kube::kubeconfig::read_text;
use crate::settings::CONFIG_FILE;

/// The prefix of the variables.
pub(crate) const VARIABLE_PREFIX: &str = "KUBELET_AUTHENTICATOR_";

/// The name of the extension.
const EXTENSION: &str = "client.authentication.k8s.io/exec";

/// Settings in ignored sources, each with its location.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leftovers(Vec<String>);

impl Leftovers {
    /// Adds the variables of an environment that have this project's prefix.
    #[must_use]
    pub(crate) fn in_environment(mut self, names: impl Iterator<Item = OsString>) -> Self {
        let names = names.filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| name.starts_with(VARIABLE_PREFIX)) {
            self.add(name);
        }
        self
    }

    /// Adds an extension if it is not empty.
    #[must_use]
    pub(crate) fn in_extension(mut self, place: &str, extension: &Value) -> Self {
        if extension
            .as_object()
            .is_some_and(|members| !members.is_empty())
        {
            self.add(format!("the exec extension in {place}"));
        }
        self
    }

    /// Adds the variables and extensions of a kubeconfig.
    #[must_use]
    pub(crate) fn in_kubeconfig(mut self, path: &Path) -> Self {
        let document = read_text(path).ok();
        let document: Option<Value> =
            document.and_then(|text| serde_saphyr::from_str(first_document(&text).0).ok());
        let document = document.unwrap_or_default();
        let place = path.display().to_string();
        for cluster in items(&document, "/clusters") {
            let all = items(cluster, "/cluster/extensions");
            for extension in all.filter(|one| one.get("name") == Some(&EXTENSION.into())) {
                let content = extension.get("extension").unwrap_or(&Value::Null);
                self = self.in_extension(&place, content);
            }
        }
        let variables = items(&document, "/users").flat_map(|user| items(user, "/user/exec/env"));
        let names = variables.filter_map(|variable| Some(variable.get("name")?.as_str()?.into()));
        self.in_environment(names)
    }

    fn add(&mut self, place: String) {
        if !self.0.contains(&place) {
            self.0.push(place);
        }
    }

    /// The warning about ignored settings, with a hint; `None` if no settings are ignored.
    pub(crate) fn failure(&self) -> Option<Failure> {
        if self.0.is_empty() {
            return None;
        }
        let what = format!(
            "environment variables and exec extensions are not settings, and are ignored: {}",
            self.0.join(", ")
        );
        let cure = format!(
            "set the keys in {CONFIG_FILE} or in a drop-in in config.d next to it, and remove the \
             variables and extensions"
        );
        Some(Failure::new(Code::Configuration, what, cure))
    }
}

fn items<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    let list = value.pointer(pointer).and_then(Value::as_array);
    list.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn what(leftovers: &Leftovers) -> String {
        let failure = leftovers.failure();
        failure.map_or_else(String::new, |failure| failure.what().to_owned())
    }

    #[test]
    fn a_variable_with_our_prefix_is_reported() {
        let of = |name: &str| {
            let names = [name.into(), "HTTPS_PROXY".into()].into_iter();
            what(&Leftovers::default().in_environment(names))
        };
        let found = of("KUBELET_AUTHENTICATOR_NODE_NAME");
        assert!(
            found.ends_with("are ignored: KUBELET_AUTHENTICATOR_NODE_NAME"),
            "{found}"
        );
        assert_eq!(of("PATH"), "");
    }

    #[test]
    fn an_extension_is_reported_without_its_values() {
        let of = |extension: &Value| what(&Leftovers::default().in_extension("x", extension));

        let named = of(&json!({"nodeName": "secret"}));
        assert!(
            named.ends_with("ignored: the exec extension in x"),
            "{named}"
        );
        for nothing in [json!({}), json!(null), json!([1])] {
            assert_eq!(of(&nothing), "", "{nothing}");
        }
    }

    #[test]
    fn a_kubeconfig_is_searched_for_variables_and_extensions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubelet.conf");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            what(&Leftovers::default().in_kubeconfig(&path))
        };
        let found = of("clusters:\n- cluster:\n    extensions:\n    \
             - {name: client.authentication.k8s.io/exec, extension: {audience: a}}\n    \
             - {name: other, extension: {nodeName: a}}\n\
             users:\n- user:\n    exec:\n      env:\n      \
             - {name: KUBELET_AUTHENTICATOR_AUDIENCE, value: secret}\n");

        let extension = format!("the exec extension in {}", path.display());
        let variable = "KUBELET_AUTHENTICATOR_AUDIENCE";
        assert!(
            found.ends_with(&format!("ignored: {extension}, {variable}")),
            "{found}"
        );
        assert_eq!(of("clusters: []\nusers:\n- user: {token: a}\n"), "");
        assert_eq!(of("{"), "");
    }
}
