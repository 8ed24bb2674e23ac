//! The exec credential API: the input from client-go, and the output of the plugin.
//!
//! Source: client-go's `pkg/apis/clientauthentication/{v1,v1beta1}/types.go`. Standard output carries only one
//! `ExecCredential`: other output makes client-go drop the credential.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::error::Category;
use serde_json::value::RawValue;
use zeroize::Zeroizing;

use crate::failure::{Code, Failure};
use crate::secret::Secret;

/// The environment variable with client-go's input.
pub(crate) const EXEC_INFO: &str = "KUBERNETES_EXEC_INFO";

/// The maximum length of an environment variable in Linux, including its name and the terminating zero
/// (`MAX_ARG_STRLEN`). Linux does not start a program that has a longer variable.
pub(crate) const MAX_VARIABLE_LEN: usize = 128 * 1024;

const MAX_EXEC_INFO_LEN: usize = 2 * MAX_VARIABLE_LEN;

const KIND: &str = "ExecCredential";

/// The last second in RFC 3339, at the end of the year 9999.
const LAST_TIMESTAMP: Duration = Duration::from_secs(253_402_300_799);

/// The versions of the exec credential API. The output must have the same version as the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApiVersion {
    /// `client.authentication.k8s.io/v1`
    V1,
    /// `client.authentication.k8s.io/v1beta1`
    V1Beta1,
}

impl ApiVersion {
    /// Returns the `apiVersion` of the version.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V1 => "client.authentication.k8s.io/v1",
            Self::V1Beta1 => "client.authentication.k8s.io/v1beta1",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        [Self::V1, Self::V1Beta1]
            .into_iter()
            .find(|version| version.as_str() == name)
    }
}

/// The input from client-go.
#[derive(Debug)]
pub struct ExecInfo<'a> {
    /// The version that the output must have.
    pub version: ApiVersion,
    /// The cluster that accepts the credential, if the kubeconfig sets `provideClusterInfo: true`.
    pub cluster: Option<ExecCluster<'a>>,
}

/// `spec.cluster`: the cluster that client-go is about to use. Its fields are not verified.
///
/// `Debug` omits the fields that can contain a secret: the proxy's URL and the extension.
#[derive(derive_more::Debug, Clone, Deserialize)]
#[debug("ExecCluster({server:?}, {tls_server_name:?})")]
#[serde(rename_all = "kebab-case", bound(deserialize = "'de: 'a"))]
pub struct ExecCluster<'a> {
    /// The API server's URL.
    #[serde(borrow, default)]
    pub server: Cow<'a, str>,
    /// The expected name in the server's certificate, if it differs from the URL's host.
    #[serde(borrow, default)]
    pub tls_server_name: Option<Cow<'a, str>>,
    /// Whether the kubeconfig disables verification.
    #[serde(default)]
    pub insecure_skip_tls_verify: bool,
    /// The cluster's CA certificates: base64 of PEM.
    #[serde(borrow, default)]
    pub certificate_authority_data: Option<Cow<'a, str>>,
    /// The proxy's URL.
    #[serde(borrow, default)]
    pub proxy_url: Option<Cow<'a, str>>,
    /// The cluster's `client.authentication.k8s.io/exec` extension, unparsed.
    #[serde(borrow, default)]
    pub config: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct WireInfo<'a> {
    #[serde(borrow, default)]
    kind: Cow<'a, str>,
    #[serde(borrow, default)]
    api_version: Cow<'a, str>,
    #[serde(borrow, default)]
    spec: WireSpec<'a>,
}

#[derive(Deserialize, Default)]
#[serde(bound(deserialize = "'de: 'a"))]
struct WireSpec<'a> {
    #[serde(borrow, default)]
    cluster: Option<ExecCluster<'a>>,
}

impl<'a> ExecInfo<'a> {
    /// Parses the value of `KUBERNETES_EXEC_INFO`. Ignores unknown fields, because the API only adds fields.
    ///
    /// # Errors
    ///
    /// Errors contain only the values of the kind and the version, because a cluster's extension can contain secrets.
    pub fn parse(value: &'a OsStr) -> Result<Self, Failure> {
        let len = value.len();
        if len > MAX_EXEC_INFO_LEN {
            return Err(invalid(&format!(
                " is {len} bytes long (limit: {MAX_EXEC_INFO_LEN})"
            )));
        }
        let text = value.to_str().ok_or_else(|| invalid(" is not UTF-8"))?;
        if text.trim().is_empty() {
            return Err(invalid(
                " is empty; client-go sets this variable; to run the plugin manually, unset the variable",
            ));
        }
        let info: WireInfo<'a> =
            serde_json::from_str(text).map_err(|error| reason(text, &error))?;
        if info.kind != KIND {
            let found = shortened(&info.kind);
            return Err(invalid(&format!(": field kind is {found:?}, not {KIND:?}")));
        }
        let version = ApiVersion::parse(&info.api_version).ok_or_else(|| {
            let found = shortened(&info.api_version);
            let [v1, v1beta1] = [ApiVersion::V1, ApiVersion::V1Beta1].map(ApiVersion::as_str);
            invalid(&format!(
                ": field apiVersion is {found:?}, which is not supported; set the kubeconfig's \
                 user.exec.apiVersion to {v1:?} or {v1beta1:?}"
            ))
        })?;
        Ok(Self {
            version,
            cluster: info.spec.cluster,
        })
    }
}

fn invalid(how: &str) -> Failure {
    Failure::new(
        Code::Configuration,
        format!("{EXEC_INFO}{how}"),
        "check that client-go runs this plugin with API version v1 or v1beta1",
    )
}

fn reason(text: &str, error: &serde_json::Error) -> Failure {
    invalid(&match error.classify() {
        Category::Eof => format!(" is cut off after {} bytes", text.len()),
        Category::Syntax | Category::Io => {
            format!(" is not valid JSON at column {}", error.column())
        }
        Category::Data => format!(
            ": field {} does not match the {KIND} API",
            failing_path(text)
        ),
    })
}

/// Parses the text again to find the invalid field. The first pass does not track paths, which saves time.
fn failing_path(text: &str) -> String {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let second: Result<WireInfo<'_>, _> = serde_path_to_error::deserialize(&mut deserializer);
    second
        .err()
        .map_or_else(String::new, |error| error.path().to_string())
}

/// Returns the beginning of an untrusted text, which is long enough to recognize the text.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireCredential<'a> {
    api_version: &'static str,
    kind: &'static str,
    status: WireStatus<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireStatus<'a> {
    expiration_timestamp: &'a str,
    client_certificate_data: &'a str,
    client_key_data: &'a str,
}

/// Returns the output for client-go, as one line of JSON. It contains a client certificate with its chain, leaf first,
/// its key, and the time at which client-go must run the plugin again.
pub(crate) fn exec_credential(
    version: ApiVersion,
    expiration: SystemTime,
    certificate_pem: &str,
    key_pem: &Secret<String>,
) -> io::Result<Zeroizing<Vec<u8>>> {
    let credential = WireCredential {
        api_version: version.as_str(),
        kind: KIND,
        status: WireStatus {
            expiration_timestamp: &rfc3339(expiration),
            client_certificate_data: certificate_pem,
            client_key_data: key_pem.expose(),
        },
    };
    // The size of the PEM plus 10 %, for escaped line ends. A growing buffer would leave copies of the key in memory.
    let pem_len = certificate_pem.len() + key_pem.expose().len();
    let mut json = Zeroizing::new(Vec::with_capacity(pem_len + pem_len / 10 + 512));
    serde_json::to_writer(&mut *json, &credential)?;
    json.push(b'\n');
    Ok(json)
}

/// Rounds down to whole seconds, so that the result is never later than `time`.
fn rfc3339(time: SystemTime) -> String {
    let last = SystemTime::UNIX_EPOCH + LAST_TIMESTAMP;
    humantime::format_rfc3339_seconds(time.clamp(SystemTime::UNIX_EPOCH, last)).to_string()
}

#[cfg(test)]
mod tests;
