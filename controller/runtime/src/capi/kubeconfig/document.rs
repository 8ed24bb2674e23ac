//! The text, as far as it is looked at.
//!
//! What is not named here is ignored; nothing that is ignored is used.

use serde::Deserialize;
use serde::de::IgnoredAny;
use zeroize::Zeroizing;

use super::refused::KubeconfigRefused;

/// Cluster API writes one of each.
const MAX_LISTED: usize = 8;

/// Of nested lists and maps; a kubeconfig has five, and one in an extension has more.
const MAX_DEPTH: usize = 16;

/// Of what the parser reads; Cluster API's kubeconfig has some fifty.
const MAX_EVENTS: usize = 2048;

#[derive(Deserialize)]
pub(super) struct Document {
    #[serde(rename = "apiVersion")]
    version: Option<String>,
    kind: Option<String>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
    clusters: Option<Vec<NamedCluster>>,
    contexts: Option<Vec<NamedContext>>,
    users: Option<Vec<NamedUser>>,
}

#[derive(Deserialize)]
struct NamedCluster {
    name: String,
    cluster: Option<Cluster>,
}

#[derive(Deserialize)]
struct NamedContext {
    name: String,
    context: Option<Context>,
}

#[derive(Deserialize)]
struct NamedUser {
    name: String,
    user: Option<User>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    #[serde(rename = "certificate-authority-data")]
    pub(super) ca_data: Option<String>,
    pub(super) tls_server_name: Option<String>,
    certificate_authority: Option<String>,
    insecure_skip_tls_verify: Option<bool>,
    proxy_url: Option<String>,
}

#[derive(Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct User {
    #[serde(rename = "client-certificate-data")]
    pub(super) certificate_data: Option<String>,
    #[serde(rename = "client-key-data")]
    pub(super) key_data: Option<Zeroizing<String>>,
    pub(super) token: Option<Zeroizing<String>>,
    client_certificate: Option<String>,
    client_key: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    username: Option<IgnoredAny>,
    password: Option<IgnoredAny>,
    #[serde(rename = "as")]
    impersonated: Option<IgnoredAny>,
    as_uid: Option<IgnoredAny>,
    as_groups: Option<IgnoredAny>,
    as_user_extra: Option<IgnoredAny>,
    auth_provider: Option<IgnoredAny>,
    exec: Option<IgnoredAny>,
}

impl Document {
    pub(super) fn parse(text: &[u8]) -> Result<Self, KubeconfigRefused> {
        let text = std::str::from_utf8(text).map_err(|_| KubeconfigRefused::NotUtf8)?;
        let mut options = serde_saphyr::options! {
            // A snippet of the text in an error could show a key.
            with_snippet: false,
            merge_keys: serde_saphyr::MergeKeyPolicy::Error,
        };
        if let Some(budget) = &mut options.budget {
            budget.max_events = MAX_EVENTS;
            budget.max_depth = MAX_DEPTH;
            // No tool writes them, and they multiply.
            budget.max_aliases = 0;
            budget.max_anchors = 0;
        }
        // The error's words may repeat a value, so only its place is told.
        let document: Self =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let location = error.location();
                KubeconfigRefused::Syntax {
                    line: location.map_or(1, |location| location.line()),
                    column: location.map_or(1, |location| location.column()),
                }
            })?;
        let is = |value: &Option<String>, expected| value.as_deref().is_none_or(|v| v == expected);
        if is(&document.version, "v1") && is(&document.kind, "Config") {
            Ok(document)
        } else {
            Err(KubeconfigRefused::WrongType)
        }
    }

    /// Looks at everything that is listed, not only at what the current context is made of.
    pub(super) fn refuse_what_is_not_ours(&self) -> Result<(), KubeconfigRefused> {
        let clusters = self.clusters.as_deref().unwrap_or_default();
        let users = self.users.as_deref().unwrap_or_default();
        let contexts = self.contexts.as_deref().unwrap_or_default();
        unambiguous("clusters", clusters, |one| &one.name)?;
        unambiguous("contexts", contexts, |one| &one.name)?;
        unambiguous("users", users, |one| &one.name)?;
        for cluster in clusters.iter().filter_map(|one| one.cluster.as_ref()) {
            cluster.refuse()?;
        }
        for user in users.iter().filter_map(|one| one.user.as_ref()) {
            user.refuse()?;
        }
        Ok(())
    }

    /// What the current context names.
    pub(super) fn current(self) -> Result<(Cluster, User), KubeconfigRefused> {
        let Self {
            current_context,
            clusters,
            contexts,
            users,
            ..
        } = self;
        let current = current_context
            .filter(|name| !name.is_empty())
            .ok_or(KubeconfigRefused::NoCurrentContext)?;
        let unknown = |listed| KubeconfigRefused::Unknown { listed };
        let context = contexts
            .into_iter()
            .flatten()
            .find(|one| one.name == current)
            .and_then(|one| one.context)
            .ok_or_else(|| unknown("contexts"))?;
        let cluster = clusters
            .into_iter()
            .flatten()
            .find(|one| Some(&one.name) == context.cluster.as_ref())
            .and_then(|one| one.cluster)
            .ok_or_else(|| unknown("clusters"))?;
        let user = users
            .into_iter()
            .flatten()
            .find(|one| Some(&one.name) == context.user.as_ref())
            .and_then(|one| one.user)
            .ok_or_else(|| unknown("users"))?;
        Ok((cluster, user))
    }
}

fn unambiguous<T>(
    listed: &'static str,
    all: &[T],
    name: impl Fn(&T) -> &str,
) -> Result<(), KubeconfigRefused> {
    if all.len() > MAX_LISTED {
        return Err(KubeconfigRefused::TooMany {
            listed,
            max: MAX_LISTED,
        });
    }
    let mut rest = all;
    while let Some((first, others)) = rest.split_first() {
        if others.iter().any(|other| name(other) == name(first)) {
            return Err(KubeconfigRefused::Duplicate { listed });
        }
        rest = others;
    }
    Ok(())
}

impl Cluster {
    fn refuse(&self) -> Result<(), KubeconfigRefused> {
        if self.insecure_skip_tls_verify == Some(true) {
            return Err(KubeconfigRefused::SkipsVerification);
        }
        if is_given(self.proxy_url.as_ref()) {
            return Err(KubeconfigRefused::Proxy);
        }
        if is_given(self.certificate_authority.as_ref()) {
            return Err(KubeconfigRefused::File {
                field: "certificate-authority",
            });
        }
        Ok(())
    }
}

impl User {
    fn refuse(&self) -> Result<(), KubeconfigRefused> {
        if self.exec.is_some() {
            return Err(KubeconfigRefused::Exec);
        }
        if self.auth_provider.is_some() {
            return Err(KubeconfigRefused::AuthProvider);
        }
        for (field, path) in [
            ("client-certificate", &self.client_certificate),
            ("client-key", &self.client_key),
            ("tokenFile", &self.token_file),
        ] {
            if is_given(path.as_ref()) {
                return Err(KubeconfigRefused::File { field });
            }
        }
        for (field, value) in [
            ("as", &self.impersonated),
            ("as-uid", &self.as_uid),
            ("as-groups", &self.as_groups),
            ("as-user-extra", &self.as_user_extra),
        ] {
            if value.is_some() {
                return Err(KubeconfigRefused::Impersonates { field });
            }
        }
        if self.username.is_some() || self.password.is_some() {
            return Err(KubeconfigRefused::Password);
        }
        Ok(())
    }
}

/// An empty text is how some writers leave a field out.
fn is_given(text: Option<&String>) -> bool {
    text.is_some_and(|text| !text.is_empty())
}
