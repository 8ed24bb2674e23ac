//! The parsed document, with only the fields that the project uses.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_path_to_error::Track;
use serde_saphyr::MergeKeyPolicy;
use zeroize::Zeroizing;

use super::Policy;
use super::endpoint::{ClusterEndpoint, EndpointFields};
use super::error::{InvalidKubeconfig, Refused};
use super::login::{Exec, Login, User};
use super::source::{content, filled, secret};
use crate::secret::Secret;

/// The maximum number of entries in a tenant's list. Cluster API writes one entry in each list.
const MAX_TENANT_ENTRIES: usize = 8;

/// The maximum nesting of a tenant's lists and maps. A kubeconfig uses five levels, but an extension can have more.
const MAX_TENANT_DEPTH: usize = 16;

/// The maximum number of YAML parser events for a tenant's text. Cluster API's kubeconfig has about 50.
const MAX_TENANT_EVENTS: usize = 2048;

/// A kubeconfig. Only its current context is used.
#[derive(Debug)]
pub struct Kubeconfig {
    document: String,
    policy: Policy,
    contents: Contents,
}

#[derive(Debug, Deserialize)]
struct Contents {
    #[serde(rename = "apiVersion")]
    version: Option<String>,
    kind: Option<String>,
    #[serde(rename = "current-context")]
    current_context: Option<String>,
    clusters: Option<Vec<Named<Cluster>>>,
    contexts: Option<Vec<Named<Context>>>,
    users: Option<Vec<Named<User>>>,
}

#[derive(Debug, Deserialize)]
struct Named<T> {
    name: String,
    #[serde(rename = "cluster", alias = "context", alias = "user")]
    value: Option<T>,
}

#[derive(Debug, Deserialize)]
struct Context {
    cluster: Option<String>,
    user: Option<String>,
}

/// A cluster in a kubeconfig, before it is checked.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Cluster {
    /// The API server's URL.
    pub server: Option<String>,
    /// The expected name in the server's certificate, if it differs from the URL's host.
    pub tls_server_name: Option<String>,
    /// Whether the client skips the verification of the server.
    pub insecure_skip_tls_verify: Option<bool>,
    /// The path of the file with the CA certificates.
    pub certificate_authority: Option<String>,
    /// The CA certificates, as base64 of PEM.
    pub certificate_authority_data: Option<String>,
    /// The proxy's URL, which can contain a password.
    #[serde(default, deserialize_with = "secret")]
    pub proxy_url: Option<Secret<String>>,
}

impl Kubeconfig {
    /// Parses the text. Errors name `document`.
    ///
    /// With [`Policy::Tenant`], this function checks every cluster and user. With [`Policy::Machine`],
    /// [`endpoint`](Self::endpoint) and [`login`](Self::login) check only the entries of the current context.
    pub fn parse(document: &str, text: &[u8], policy: Policy) -> Result<Self, InvalidKubeconfig> {
        let refuse = |why| InvalidKubeconfig::at(document, why);
        if text.len() > policy.max_len() {
            return Err(refuse(Refused::TooLong(policy.max_len())));
        }
        let text = str::from_utf8(text).map_err(|_| refuse(Refused::NotUtf8))?;
        let kubeconfig = Self {
            document: document.to_owned(),
            policy,
            contents: Contents::parse(document, text, policy)?,
        };
        let contents = &kubeconfig.contents;
        // As in client-go, an empty field is a missing field.
        let is_empty = |value: &str| policy == Policy::Machine && value.is_empty();
        let is = |value: &Option<String>, expected| {
            let value = value.as_deref();
            value.is_none_or(|value| value == expected || is_empty(value))
        };
        if !is(&contents.version, "v1") || !is(&contents.kind, "Config") {
            return Err(refuse(Refused::WrongType));
        }
        kubeconfig.check_entries("cluster", contents.clusters.as_deref(), Cluster::refused)?;
        kubeconfig.check_entries("context", contents.contexts.as_deref(), |_, _| None)?;
        kubeconfig.check_entries("user", contents.users.as_deref(), User::refused)?;
        Ok(kubeconfig)
    }

    /// Returns the cluster of the current context. `read` reads the CA file.
    pub fn endpoint<E: From<InvalidKubeconfig>>(
        &self,
        read: impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<ClusterEndpoint, E> {
        let name = self.context()?.cluster.as_deref();
        let (cluster, place) = self.find("cluster", self.contents.clusters.as_deref(), name)?;
        cluster.endpoint(self.policy, &place, read)
    }

    /// Returns the login of the current context's user. `read` reads the files to which the user entry refers.
    pub fn login<E: From<InvalidKubeconfig>>(
        &self,
        read: impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<Login, E> {
        let (user, place) = self.user()?;
        user.login(self.policy, &place, read)
    }

    /// Returns the exec plugin of the current context's user. `None` if the user has no plugin.
    pub fn exec(&self) -> Result<Option<&Exec>, InvalidKubeconfig> {
        Ok(self.user()?.0.exec.as_ref())
    }

    /// Whether the current context's user has a token or a certificate.
    pub fn has_credential(&self) -> Result<bool, InvalidKubeconfig> {
        Ok(self.user()?.0.has_credential())
    }

    fn user(&self) -> Result<(&User, String), InvalidKubeconfig> {
        let name = self.context()?.user.as_deref();
        self.find("user", self.contents.users.as_deref(), name)
    }

    fn context(&self) -> Result<&Context, InvalidKubeconfig> {
        let missing =
            || InvalidKubeconfig::new(&self.document, "current-context", Refused::Missing);
        let name = filled(self.contents.current_context.as_deref()).ok_or_else(missing)?;
        let contexts = self.contents.contexts.as_deref();
        Ok(self.find("context", contexts, Some(name))?.0)
    }

    /// Returns the entry with this name, and its position for error messages.
    fn find<'a, T>(
        &self,
        kind: &str,
        list: Option<&'a [Named<T>]>,
        name: Option<&str>,
    ) -> Result<(&'a T, String), InvalidKubeconfig> {
        let name = name.unwrap_or_default();
        let place = self.place(kind, name);
        let mut entries = list.unwrap_or_default().iter();
        let entry = entries.find(|entry| entry.name == name);
        match entry.and_then(|entry| entry.value.as_ref()) {
            Some(value) => Ok((value, place)),
            None => Err(InvalidKubeconfig::at(place, Refused::Missing)),
        }
    }

    /// Checks that names are unique, as in client-go. For a tenant, also checks the length of the list and each entry.
    fn check_entries<T>(
        &self,
        kind: &str,
        list: Option<&[Named<T>]>,
        refused: impl Fn(&T, Policy) -> Option<(&'static str, Refused)>,
    ) -> Result<(), InvalidKubeconfig> {
        let list = list.unwrap_or_default();
        let mut names = BTreeSet::new();
        if let Some(twice) = list.iter().find(|entry| !names.insert(&entry.name)) {
            let place = self.place(kind, &twice.name);
            return Err(InvalidKubeconfig::at(place, Refused::Ambiguous));
        }
        if self.policy != Policy::Tenant {
            return Ok(());
        }
        let place = self.place(kind, "");
        if list.len() > MAX_TENANT_ENTRIES {
            let why = Refused::TooMany(MAX_TENANT_ENTRIES);
            return Err(InvalidKubeconfig::at(place, why));
        }
        let mut values = list.iter().filter_map(|entry| entry.value.as_ref());
        match values.find_map(|value| refused(value, self.policy)) {
            Some((field, why)) => Err(InvalidKubeconfig::new(&place, field, why)),
            None => Ok(()),
        }
    }

    fn place(&self, kind: &str, name: &str) -> String {
        match self.policy {
            Policy::Machine => format!("{}: {kind} {name:?}", self.document),
            Policy::Tenant => format!("{}: {kind}", self.document),
        }
    }
}

impl Contents {
    fn parse(document: &str, text: &str, policy: Policy) -> Result<Self, InvalidKubeconfig> {
        // Errors must not contain snippets of the text, because a snippet can contain a credential.
        let mut options = serde_saphyr::options! { with_snippet: false };
        if policy == Policy::Tenant {
            options.merge_keys = MergeKeyPolicy::Error;
            if let Some(budget) = &mut options.budget {
                budget.max_events = MAX_TENANT_EVENTS;
                budget.max_depth = MAX_TENANT_DEPTH;
                // Reject aliases: tools do not write them, and their expansion multiplies the size.
                budget.max_aliases = 0;
                budget.max_anchors = 0;
            }
        }
        let (first, rest) = first_document(text);
        // As in client-go, a marker or a comment can follow the document.
        let has_one = policy == Policy::Machine && is_blank(rest);
        let text = if has_one { first } else { text };
        let mut track = Track::new();
        let parsed = serde_saphyr::with_deserializer_from_str_with_options(text, options, |yaml| {
            Self::deserialize(serde_path_to_error::Deserializer::new(yaml, &mut track))
        });
        // The parser's error message can contain a value, so report only the position.
        parsed.map_err(|error| {
            let place = match error.location() {
                Some(at) => format!("{document}: line {}, column {}", at.line(), at.column()),
                None => document.to_owned(),
            };
            match policy {
                Policy::Machine => {
                    InvalidKubeconfig::new(&place, &track.path().to_string(), Refused::Syntax)
                }
                // The path of an unknown field contains text from the tenant.
                Policy::Tenant => InvalidKubeconfig::at(place, Refused::Syntax),
            }
        })
    }
}

/// Splits a YAML text after its first document. The second part begins with the marker after this document.
pub fn first_document(text: &str) -> (&str, &str) {
    let (mut has_started, mut at) = (false, 0);
    for line in text.split_inclusive('\n') {
        let begin = at;
        at += line.len();
        let line = line.trim_start_matches('\u{feff}').trim_end();
        let is_start = is_marker(line, "---");
        if has_started && (is_start || is_marker(line, "...")) {
            return text.split_at_checked(begin).unwrap_or((text, ""));
        }
        // Comments and directives can precede the document. A comment can be indented.
        let is_comment = line.trim_start().starts_with('#');
        has_started |= is_start || !(line.is_empty() || is_comment || line.starts_with('%'));
    }
    (text, "")
}

fn is_marker(line: &str, marker: &str) -> bool {
    let rest = line.strip_prefix(marker);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
}

/// Whether a YAML text contains only markers and comments.
fn is_blank(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim);
    lines.all(|line| ["", "---", "..."].contains(&line) || line.starts_with('#'))
}

impl Cluster {
    /// Checks the cluster. Errors name `place`. `read` reads the CA file.
    pub fn endpoint<E: From<InvalidKubeconfig>>(
        &self,
        policy: Policy,
        place: &str,
        read: impl Fn(&str) -> Result<Zeroizing<Vec<u8>>, E>,
    ) -> Result<ClusterEndpoint, E> {
        if let Some((field, why)) = self.refused(policy) {
            return Err(InvalidKubeconfig::new(place, field, why).into());
        }
        let data = filled(self.certificate_authority_data.as_deref());
        let file = filled(self.certificate_authority.as_deref());
        let inline = "certificate-authority-data";
        let field = match (data, file) {
            (None, Some(_)) => "certificate-authority",
            (Some(_), _) | (None, None) => inline,
        };
        let otherwise = Refused::NotCertificates;
        let ca_pem = content((inline, data), file, (policy, place), otherwise, &read)?;
        let fields = EndpointFields {
            server: self.server.clone().unwrap_or_default(),
            ca_pem: ca_pem.map(|pem| pem.to_string()).unwrap_or_default(),
            tls_server_name: self.tls_server_name.clone(),
            proxy_url: self.proxy_url.as_ref().map(|url| url.expose().clone()),
        };
        Ok(ClusterEndpoint::check(fields, policy, place, field)?)
    }

    /// Returns the first field that makes this cluster unusable.
    fn refused(&self, policy: Policy) -> Option<(&'static str, Refused)> {
        let is_tenant = policy == Policy::Tenant;
        let skips = self.insecure_skip_tls_verify == Some(true);
        let has_proxy = is_tenant && self.proxy_url.is_some();
        let has_file = is_tenant && filled(self.certificate_authority.as_deref()).is_some();
        [
            (
                "insecure-skip-tls-verify",
                skips,
                Refused::SkipsVerification,
            ),
            ("proxy-url", has_proxy, Refused::Proxy),
            ("certificate-authority", has_file, Refused::File),
        ]
        .into_iter()
        .find_map(|(field, is_there, why)| is_there.then_some((field, why)))
    }
}
