//! The file format, as far as it is used here: `k8s.io/client-go/tools/clientcmd/api/v1/types.go`.

use serde::{Deserialize, Deserializer};

use super::error::Refused;
use crate::secret::Secret;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Contents {
    pub(super) current_context: Option<String>,
    pub(super) clusters: Option<Vec<Named<Cluster>>>,
    pub(super) contexts: Option<Vec<Named<Context>>>,
    pub(super) users: Option<Vec<Named<User>>>,
}

#[derive(Deserialize)]
pub(super) struct Named<T> {
    pub(super) name: String,
    #[serde(alias = "cluster", alias = "context", alias = "user")]
    pub(super) value: T,
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Context {
    pub(super) cluster: String,
    pub(super) user: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Cluster {
    pub(super) server: Option<String>,
    pub(super) tls_server_name: Option<String>,
    #[serde(default)]
    pub(super) insecure_skip_tls_verify: bool,
    pub(super) certificate_authority: Option<String>,
    pub(super) certificate_authority_data: Option<String>,
    pub(super) proxy_url: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct User {
    #[serde(default, deserialize_with = "secret")]
    pub(super) token: Option<Secret<String>>,
    #[serde(rename = "tokenFile")]
    pub(super) token_file: Option<String>,
    pub(super) client_certificate: Option<String>,
    pub(super) client_certificate_data: Option<String>,
    pub(super) client_key: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) client_key_data: Option<Secret<String>>,
    pub(super) username: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    pub(super) password: Option<Secret<String>>,
    pub(super) exec: Option<Exec>,
    pub(super) auth_provider: Option<Present>,
    #[serde(rename = "as")]
    pub(super) impersonate: Option<Present>,
    pub(super) as_uid: Option<Present>,
    pub(super) as_groups: Option<Present>,
    pub(super) as_user_extra: Option<Present>,
}

/// The exec plugin of a user.
#[derive(Deserialize)]
pub(super) struct Exec {
    pub(super) command: Option<String>,
}

/// A field that matters only by its presence.
pub(super) struct Present;

impl<'de> Deserialize<'de> for Present {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        serde::de::IgnoredAny::deserialize(deserializer).map(|_| Self)
    }
}

fn secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret<String>>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
}

impl User {
    /// The first field that makes this user unusable.
    pub(super) fn refused(&self) -> Option<(&'static str, Refused)> {
        [
            ("exec", self.exec.is_some(), Refused::Exec),
            (
                "auth-provider",
                self.auth_provider.is_some(),
                Refused::AuthProvider,
            ),
            ("username", self.username.is_some(), Refused::Password),
            ("password", self.password.is_some(), Refused::Password),
            ("as", self.impersonate.is_some(), Refused::Impersonation),
            ("as-uid", self.as_uid.is_some(), Refused::Impersonation),
            (
                "as-groups",
                self.as_groups.is_some(),
                Refused::Impersonation,
            ),
            (
                "as-user-extra",
                self.as_user_extra.is_some(),
                Refused::Impersonation,
            ),
        ]
        .into_iter()
        .find_map(|(field, is_there, why)| is_there.then_some((field, why)))
    }
}
