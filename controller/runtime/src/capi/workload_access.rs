//! The controller's own access to a workload cluster: a Secret in the controller's namespace, and its token.
//!
//! The Secret contains a kubeconfig in the key `value`, as Cluster API's `<cluster>-kubeconfig` does, and the same
//! restrictions apply to both kubeconfigs. The user in the kubeconfig is a service account of the workload cluster.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::{BASE64, BASE64URL_NOPAD, HEXLOWER};
use kubelet_attestation::names::is_dns_subdomain;
use node_attestation_core::time::until;
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use super::ObjectKey;

/// The prefix of the Secret's name.
const PREFIX: &str = "workload-access";

/// The maximum length of an object name.
const MAX_NAME: usize = 253;

/// The maximum length of a token. The API server's tokens are about 1 KB long.
const MAX_TOKEN_LEN: usize = 16 * 1024;

/// The longest outage of the controller that a token must outlive.
const OUTAGE: Duration = Duration::from_hours(10 * 24);

/// The prefix of a service account's user name.
const SERVICE_ACCOUNT: &str = "system:serviceaccount:";

/// The name of the Secret with the controller's own kubeconfig for this Cluster:
/// `workload-access.<namespace>.<cluster>`.
///
/// If this name is too long, a digest replaces both parts.
///
/// # Guarantees
///
/// Different Clusters have different names. A namespace does not contain a dot, so the second dot ends the namespace.
/// A name with a digest has only one dot.
pub fn access_secret_name(cluster: &ObjectKey) -> String {
    let ObjectKey { namespace, name } = cluster;
    let plain = format!("{PREFIX}.{namespace}.{name}");
    if plain.len() <= MAX_NAME {
        return plain;
    }
    let digest = cluster.to_string();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, digest.as_bytes());
    format!("{PREFIX}.{}", HEXLOWER.encode(digest.as_ref()))
}

/// The claims of a service account token with an expiry time. The claims are not secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    namespace: String,
    account: String,
    issued: SystemTime,
    expires: SystemTime,
}

/// The claims that are read. The API server verifies the signature, so they are only used to renew the token.
#[derive(Deserialize)]
struct RawClaims {
    sub: String,
    iat: u64,
    exp: u64,
}

impl TokenClaims {
    /// The claims of this token. `None` if it is not a service account token, or does not expire.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let payload = token.split('.').nth(1)?;
        let payload = BASE64URL_NOPAD.decode(payload.as_bytes()).ok()?;
        let claims: RawClaims = serde_json::from_slice(&payload).ok()?;
        let (namespace, account) = claims.sub.strip_prefix(SERVICE_ACCOUNT)?.split_once(':')?;
        // The namespace and the account become segments of a URL path.
        if !is_dns_subdomain(namespace) || !is_dns_subdomain(account) {
            return None;
        }
        let time = |seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        Some(Self {
            namespace: namespace.to_owned(),
            account: account.to_owned(),
            issued: time(claims.iat)?,
            expires: time(claims.exp)?,
        })
    }

    /// The namespace of the service account.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name of the service account.
    pub(crate) fn account(&self) -> &str {
        &self.account
    }

    /// The expiry time.
    pub fn expires(&self) -> SystemTime {
        self.expires
    }

    /// The lifetime that the API server granted.
    pub fn lifetime(&self) -> Duration {
        until(self.expires, self.issued)
    }

    /// Whether a token with this lifetime outlives an outage of 10 days. A third of the lifetime passes before the
    /// controller renews a token.
    pub fn outlives_an_outage(&self) -> bool {
        self.lifetime() / 3 * 2 >= OUTAGE
    }

    /// Whether `later` is a token with a later expiry for the same service account.
    pub(crate) fn is_renewed_by(&self, later: &Self) -> bool {
        let accounts = [self, later].map(|claims| (&claims.namespace, &claims.account));
        let [own, other] = accounts;
        own == other && later.expires > self.expires
    }
}

/// A kubeconfig for this API server, as text that is wiped when it is dropped. `ca` contains certificates as DER.
///
/// Returns `None` if the token has characters that do not occur in a service account token, or is too long.
pub(crate) fn kubeconfig_text(
    server: &str,
    tls_server_name: Option<&str>,
    ca: &[Vec<u8>],
    token: &str,
) -> Option<Zeroizing<String>> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if token.is_empty() || token.len() > MAX_TOKEN_LEN || !token.chars().all(is_allowed) {
        return None;
    }
    let certificates = ca.iter();
    let certificates =
        certificates.map(|der| pem::encode(&pem::Pem::new("CERTIFICATE", der.clone())));
    let ca = BASE64.encode(certificates.collect::<String>().as_bytes());
    // A JSON text is also valid YAML.
    let quoted = |text: &str| Value::from(text).to_string();
    let server = quoted(server);
    let tls_server_name = tls_server_name.map_or_else(String::new, |name| {
        format!("    tls-server-name: {}\n", quoted(name))
    });
    Some(Zeroizing::new(format!(
        "apiVersion: v1
kind: Config
clusters:
- name: workload
  cluster:
    server: {server}
{tls_server_name}    certificate-authority-data: {ca}
users:
- name: controller
  user:
    token: {token}
contexts:
- name: controller
  context:
    cluster: workload
    user: controller
current-context: controller
"
    )))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::capi::token_of;

    fn valid() -> Value {
        json!({
            "sub": "system:serviceaccount:node-attestation-system:node-attestation-controller",
            "iat": 1_000, "exp": 4_600, "iss": "https://kubernetes.default.svc",
        })
    }

    #[test]
    fn clusters_with_similar_names_have_different_access_secrets() {
        let long = "n".repeat(240);
        let keys = [
            ("a", "b"),
            ("a-b", "c"),
            ("a", "b-c"),
            ("a", "b.c"),
            ("a-b", "b.c"),
            ("a", long.as_str()),
            ("b", long.as_str()),
        ];
        let names =
            keys.map(|(namespace, name)| access_secret_name(&ObjectKey::new(namespace, name)));

        assert_eq!(names[0], "workload-access.a.b");
        assert_eq!(names[1], "workload-access.a-b.c");
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), keys.len());
        assert!(names.iter().all(|name| name.len() <= MAX_NAME), "{names:?}");
        let longest = ObjectKey::new("n".repeat(63), "c".repeat(63));
        assert!(access_secret_name(&longest).ends_with(&"c".repeat(63)));
    }

    #[test]
    fn claims_are_read_only_from_a_service_account_token_that_expires() {
        let claims = TokenClaims::of(&token_of(&valid())).unwrap();
        assert_eq!(claims.namespace(), "node-attestation-system");
        assert_eq!(claims.account(), "node-attestation-controller");
        assert_eq!(claims.lifetime(), Duration::from_hours(1));
        assert_eq!(claims.expires(), UNIX_EPOCH + Duration::from_secs(4_600));

        for (field, value) in [
            ("sub", json!("system:node:a")),
            ("sub", json!("system:serviceaccount:a")),
            ("sub", json!("system:serviceaccount:a/b:c")),
            ("sub", json!("system:serviceaccount::c")),
            ("sub", json!("system:serviceaccount:..:c")),
            ("sub", json!("system:serviceaccount:a:..")),
            ("sub", json!("system:serviceaccount:a:c?d=e")),
            ("exp", Value::Null),
            ("exp", json!(-1)),
            ("exp", json!(u64::MAX)),
            ("iat", Value::Null),
        ] {
            let mut claims = valid();
            claims[field] = value.clone();
            assert_eq!(
                TokenClaims::of(&token_of(&claims)),
                None,
                "{field}: {value}"
            );
        }
        for text in ["", "a", "a.b.c", "a..c"] {
            assert_eq!(TokenClaims::of(text), None, "{text}");
        }
    }

    #[test]
    fn a_token_of_fifteen_days_outlives_an_outage_of_ten_days() {
        const DAY: u64 = 24 * 3_600;
        let outlives = |seconds: u64| {
            let mut claims = valid();
            claims["exp"] = json!(1_000 + seconds);
            TokenClaims::of(&token_of(&claims))
                .unwrap()
                .outlives_an_outage()
        };

        assert!(outlives(15 * DAY));
        assert!(outlives(30 * DAY));
        assert!(!outlives(15 * DAY - 3));
        assert!(!outlives(DAY));
    }

    #[test]
    fn only_a_later_token_of_the_same_account_renews_a_token() {
        let of = |field: &str, value: Value| {
            let mut claims = valid();
            claims[field] = value;
            TokenClaims::of(&token_of(&claims)).unwrap()
        };
        let current = TokenClaims::of(&token_of(&valid())).unwrap();

        assert!(current.is_renewed_by(&of("exp", json!(4_601))));
        assert!(!current.is_renewed_by(&of("exp", json!(4_600))));
        let mut other = valid();
        other["exp"] = json!(9_000);
        other["sub"] = json!("system:serviceaccount:node-attestation-system:default");
        let other = TokenClaims::of(&token_of(&other)).unwrap();
        assert!(!current.is_renewed_by(&other));
    }

    #[test]
    fn a_token_that_would_change_the_kubeconfig_is_refused() {
        let text = |token: &str| kubeconfig_text("https://a:6443/", None, &[], token);

        assert!(text("abc-_.9").is_some());
        for token in ["", "a b", "a\n  exec: {}", "a#", "a:", "\u{e4}"] {
            assert!(text(token).is_none(), "{token:?}");
        }
        assert!(text(&"a".repeat(MAX_TOKEN_LEN)).is_some());
        assert!(text(&"a".repeat(MAX_TOKEN_LEN + 1)).is_none());
    }
}
