//! The login to an API server.

use core::fmt;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use zeroize::Zeroizing;

use super::Policy;
use super::endpoint::certificates;
use super::error::{InvalidKubeconfig, Refused};
use super::source::{content, filled, secret};
use crate::secret::Secret;

/// The login to an API server.
#[derive(Debug)]
pub enum Login {
    /// A bearer token.
    Token(Secret<String>),
    /// A client certificate.
    ClientCertificate {
        /// The certificate chain in PEM, which begins with the client certificate.
        chain_pem: String,
        /// The key of the certificate in PEM.
        key_pem: Secret<String>,
    },
}

/// The client certificate and key for TLS.
pub type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Parses the client certificate and key for TLS. The error contains the invalid part.
pub fn identity(
    chain_pem: &str,
    key_pem: &Secret<String>,
    policy: Policy,
) -> Result<Identity, (&'static str, Refused)> {
    let chain = certificates(chain_pem, policy)
        .map_err(|_| ("client-certificate", Refused::NotCertificates))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.expose().as_bytes())
        .map_err(|_| ("client-key", Refused::NotAKey))?;
    let key = match policy {
        Policy::Tenant => key,
        // As in Go, the label does not determine the format of the key.
        Policy::Machine => PrivateKeyDer::try_from(key.secret_der().to_vec()).unwrap_or(key),
    };
    Ok((chain, key))
}

/// A user of a kubeconfig.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct User {
    #[serde(default, deserialize_with = "secret")]
    token: Option<Secret<String>>,
    #[serde(rename = "tokenFile")]
    token_file: Option<String>,
    client_certificate: Option<String>,
    client_certificate_data: Option<String>,
    client_key: Option<String>,
    #[serde(default, deserialize_with = "secret")]
    client_key_data: Option<Secret<String>>,
    username: Option<Given>,
    password: Option<Given>,
    pub(super) exec: Option<Exec>,
    auth_provider: Option<IgnoredAny>,
    #[serde(rename = "as")]
    impersonate: Option<Given>,
    as_uid: Option<Given>,
    as_groups: Option<Given>,
    as_user_extra: Option<Given>,
}

/// A field that makes the user unusable. The content of the field is not stored.
#[derive(Debug, Clone, Copy)]
struct Given {
    is_empty: bool,
}

impl Given {
    /// Whether the policy applies to the field. client-go ignores empty fields. For a tenant, the policy also applies
    /// to empty fields.
    fn counts(field: Option<Self>, policy: Policy) -> bool {
        field.is_some_and(|it| !it.is_empty || policy == Policy::Tenant)
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(GivenVisitor)
    }
}

struct GivenVisitor;

impl<'de> Visitor<'de> for GivenVisitor {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Given, E> {
        let is_empty = text.is_empty();
        Ok(Given { is_empty })
    }

    fn visit_bool<E>(self, _: bool) -> Result<Given, E> {
        Ok(Given { is_empty: false })
    }

    fn visit_i64<E>(self, _: i64) -> Result<Given, E> {
        Ok(Given { is_empty: false })
    }

    fn visit_u64<E>(self, _: u64) -> Result<Given, E> {
        Ok(Given { is_empty: false })
    }

    fn visit_f64<E>(self, _: f64) -> Result<Given, E> {
        Ok(Given { is_empty: false })
    }

    fn visit_unit<E>(self) -> Result<Given, E> {
        Ok(Given { is_empty: true })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Given, A::Error> {
        let mut is_empty = true;
        while list.next_element::<IgnoredAny>()?.is_some() {
            is_empty = false;
        }
        Ok(Given { is_empty })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
        let mut is_empty = true;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            is_empty = false;
        }
        Ok(Given { is_empty })
    }
}

/// The exec plugin of a user, unchanged from the kubeconfig.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Exec {
    /// The program.
    pub command: Option<String>,
    /// The version of client-go's exec credential API.
    pub api_version: Option<String>,
    /// The rule for the plugin's use of standard input.
    pub interactive_mode: Option<String>,
    /// Whether the plugin receives the cluster information.
    pub provide_cluster_info: Option<bool>,
}

impl User {
    /// Returns the first field that makes this user unusable.
    pub(super) fn refused(&self, policy: Policy) -> Option<(&'static str, Refused)> {
        use Refused::{AuthProvider, Exec, File, Impersonation, Password, TwoCredentials};
        let is_tenant = policy == Policy::Tenant;
        let given = |field| Given::counts(field, policy);
        let has_file = |file: &Option<String>| is_tenant && filled(file.as_deref()).is_some();
        let has_chain = has_file(&self.client_certificate);
        let has_certificate = filled(self.client_certificate_data.as_deref()).is_some()
            || self.client_key_data.is_some();
        let has_two = is_tenant && self.token.is_some() && has_certificate;
        [
            ("exec", self.exec.is_some(), Exec),
            ("auth-provider", self.auth_provider.is_some(), AuthProvider),
            ("client-certificate", has_chain, File),
            ("client-key", has_file(&self.client_key), File),
            ("tokenFile", has_file(&self.token_file), File),
            ("username", given(self.username), Password),
            ("password", given(self.password), Password),
            ("as", given(self.impersonate), Impersonation),
            ("as-uid", given(self.as_uid), Impersonation),
            ("as-groups", given(self.as_groups), Impersonation),
            ("as-user-extra", given(self.as_user_extra), Impersonation),
            ("token", has_two, TwoCredentials),
        ]
        .into_iter()
        .find_map(|(field, is_there, why)| is_there.then_some((field, why)))
    }

    /// Whether the user has a token or a certificate. In client-go, both take precedence over an exec plugin.
    pub(super) fn has_credential(&self) -> bool {
        let sources = [
            &self.token_file,
            &self.client_certificate,
            &self.client_certificate_data,
        ];
        self.token.is_some()
            || sources
                .into_iter()
                .any(|it| filled(it.as_deref()).is_some())
    }

    /// Returns the login. `read` reads the files to which the user entry refers. A client certificate takes precedence
    /// over a token, as in an API server that receives both.
    pub(super) fn login<E: From<InvalidKubeconfig>>(
        &self,
        policy: Policy,
        place: &str,
        read: impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<Login, E> {
        let refuse = |(field, why)| InvalidKubeconfig::new(place, field, why);
        if let Some(refused) = self.refused(policy) {
            return Err(refuse(refused).into());
        }
        let data = filled(self.client_certificate_data.as_deref());
        let file = filled(self.client_certificate.as_deref());
        let field = ("client-certificate-data", data);
        let from = (policy, place);
        let chain = content(field, file, from, Refused::NotCertificates, &read)?;
        let data = self.client_key_data.as_ref();
        let file = filled(self.client_key.as_deref());
        let field = ("client-key-data", data.map(|data| data.expose().as_str()));
        let key = content(field, file, from, Refused::NotAKey, &read)?;
        match (chain, key) {
            (Some(chain_pem), Some(mut key_pem)) => {
                // The kubelet stores the certificate and the key in one file, so the key is removed from the chain.
                let chain_pem = certificates_of(&chain_pem);
                let key_pem = Secret::new(std::mem::take(&mut *key_pem));
                identity(&chain_pem, &key_pem, policy).map_err(refuse)?;
                Ok(Login::ClientCertificate { chain_pem, key_pem })
            }
            (Some(_), None) => Err(refuse(("client-key", Refused::Half)).into()),
            (None, Some(_)) => Err(refuse(("client-certificate", Refused::Half)).into()),
            (None, None) => self.token(place, read).map(Login::Token),
        }
    }

    /// Returns the user's token. The token file takes precedence. As in client-go, the inline token is used if the file
    /// is empty or cannot be read.
    fn token<E: From<InvalidKubeconfig>>(
        &self,
        place: &str,
        read: impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<Secret<String>, E> {
        let file = filled(self.token_file.as_deref()).map(read);
        let (field, token) = match (&file, &self.token) {
            (Some(Ok(text)), inline) if inline.is_none() || !text.trim_ascii().is_empty() => {
                let text = str::from_utf8(text).map_err(|_| Refused::NotAToken);
                ("tokenFile", text.and_then(token))
            }
            (_, Some(inline)) => ("token", token(inline.expose())),
            (_, None) => ("user", Err(Refused::NoCredential)),
        };
        match (file, token) {
            (Some(Err(error)), Err(Refused::NoCredential)) => Err(error),
            (_, token) => Ok(token.map_err(|why| InvalidKubeconfig::new(place, field, why))?),
        }
    }
}

/// Parses a token that is valid in a header. Removes the line end of a token file.
fn token(text: &str) -> Result<Secret<String>, Refused> {
    let token = text.trim();
    if !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic()) {
        Ok(Secret::new(token.to_owned()))
    } else {
        Err(Refused::NotAToken)
    }
}

/// The certificates in a PEM file, without its other blocks.
fn certificates_of(pem: &str) -> String {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    const END: &str = "-----END CERTIFICATE-----";
    let blocks = pem.split(BEGIN).skip(1);
    let blocks = blocks.filter_map(|rest| Some(rest.split_once(END)?.0));
    let lines: Vec<&str> = blocks.flat_map(|block| [BEGIN, block, END, "\n"]).collect();
    lines.concat()
}
