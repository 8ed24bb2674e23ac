//! The checks of a Cluster's Secrets: its CA, and the kubeconfig of its API server.

use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use kube::api::Api;
use kubelet_attestation::errors::error_chain;

use super::Finding;
use crate::capi::{
    ClusterCa, ObjectKey, TenantKubeconfig, TokenClaims, access_secret_name, ca_secret_name,
    kubeconfig_secret_name,
};
use crate::client::{CallError, ClusterAccess, EgressPolicy, call};
use crate::clock;
use crate::keyless_signing::KeylessSigning;
use crate::watch::readable_one_of;

/// The remaining validity below which a CA causes a warning, because no certificate is valid for longer than its CA.
const SOON: Duration = Duration::from_hours(30 * 24);

/// The suggested fix for a CA without its key.
const KEY_MISSING: &str = "put the CA's key into tls.key, or start the controller with --signer-endpoint if another \
                           program holds the key";

pub(super) async fn read(
    management: &ClusterAccess,
    key: &ObjectKey,
    name: &str,
) -> Result<Option<Secret>, CallError> {
    let api: Api<Secret> = Api::namespaced(management.client().clone(), &key.namespace);
    call(readable_one_of(&api, name)).await
}

/// Checks the CA.
pub(super) fn ca(
    key: &ObjectKey,
    read: &Result<Option<Secret>, CallError>,
    signing: KeylessSigning,
) -> Finding {
    let name = format!("{}/{}", key.namespace, ca_secret_name(&key.name));
    let secret = match read {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let cure = "wait for Cluster API; for an external control plane, create the Secret with tls.crt (and tls.key)";
            return Finding::fail(format!("Secret {name} does not exist"), cure);
        }
        Err(error) => return Finding::failed(error, &format!("get secret {name}")),
    };
    let ca = match ClusterCa::from_secret(secret) {
        Ok(ca) => ca,
        Err(error) => {
            let what = format!("Secret {name} is not accepted: {}", error_chain(&error));
            let cure = "put the CA certificate into tls.crt and, without an external signer, its key into tls.key";
            return Finding::fail(what, cure);
        }
    };
    let now = clock::now();
    let end = Timestamp::try_from(ca.not_after());
    let end = end.map_or_else(|_| "an unknown time".to_owned(), |end| format!("{end:.0}"));
    if let Some(error) = ca.out_of_time(now) {
        let cure = "replace the CA; requests stay pending until then";
        return Finding::fail(format!("{error} (expiry: {end})"), cure);
    }
    let who = match (ca.signer(), signing) {
        (Some(_), KeylessSigning::Unused) => {
            let what = format!(
                "Secret {name} has a tls.key, and the controller signs with it instead of its external signer"
            );
            let cure = "if the external signer has this key, delete tls.key from the Secret";
            return Finding::warn(what, cure);
        }
        (Some(_), _) => "with a matching key",
        (None, KeylessSigning::External) => "without a key: the controller's external signer signs",
        (None, KeylessSigning::Absent) => {
            let what = format!(
                "Secret {name} has no tls.key, and the controller has no external signer: no request is answered"
            );
            return Finding::fail(what, KEY_MISSING);
        }
        // The key was removed after the controller wrote the status.
        (None, KeylessSigning::Unused | KeylessSigning::Unknown) => {
            let what = format!(
                "Secret {name} has no tls.key; it is unknown whether the controller has an external signer"
            );
            return Finding::warn(what, KEY_MISSING);
        }
    };
    if ca.not_after() < now + SOON {
        let what =
            format!("the CA expires at {end}, and certificates are not valid after this time");
        return Finding::warn(what, "replace the CA");
    }
    Finding::pass(format!("valid until {end}, {who}"))
}

/// Checks the kubeconfig, and returns access to the workload cluster's API server, and the claims of the user's token.
///
/// The checked kubeconfig is the controller's own, if it exists and the current user can read it. Otherwise, it is
/// Cluster API's kubeconfig.
pub(super) async fn kubeconfig(
    management: &ClusterAccess,
    key: &ObjectKey,
    (egress, controller_namespace): (EgressPolicy, &str),
) -> Result<(ClusterAccess, Option<TokenClaims>), Finding> {
    let own = access_secret_name(key);
    let api: Api<Secret> = Api::namespaced(management.client().clone(), controller_namespace);
    let (name, found) = if let Ok(Some(secret)) = call(readable_one_of(&api, &own)).await {
        (format!("{controller_namespace}/{own}"), Ok(Some(secret)))
    } else {
        let name = kubeconfig_secret_name(&key.name);
        let found = read(management, key, &name).await;
        (format!("{}/{name}", key.namespace), found)
    };
    let secret = match found {
        Ok(Some(secret)) => secret,
        Ok(None) => {
            let what = format!("Secret {name} does not exist");
            return Err(Finding::fail(
                what,
                "wait for Cluster API, which creates the Secret together with the control plane",
            ));
        }
        Err(error) => return Err(Finding::failed(&error, &format!("get secret {name}"))),
    };
    let parsed = TenantKubeconfig::from_secret(&secret, egress);
    parsed
        .and_then(|parsed| Ok((parsed.access(key)?, parsed.claims().cloned())))
        .map_err(|error| {
            let what = format!("Secret {name} is not accepted: {}", error_chain(&error));
            Finding::fail(
                what,
                "correct the field that the message names: the controller also rejects this kubeconfig",
            )
        })
}

/// The finding about an API server that responds. The result is a warning if the lifetime of the token is too short.
pub(super) fn answering(server: &str, claims: Option<&TokenClaims>) -> Finding {
    let short = claims.filter(|claims| !claims.outlives_an_outage());
    let Some(claims) = short else {
        return Finding::pass(format!("{server} answers"));
    };
    let hours = claims.lifetime().as_secs() / 3600;
    let what = format!(
        "{server} responds, but the token is valid for only {hours} h: it would expire during an outage of 10 days"
    );
    let cure = "request a token with a lifetime of 720h; if the API server grants a shorter lifetime, increase its \
        option --service-account-max-token-expiration";
    Finding::warn(what, cure)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::capi::{ca_secret, ca_secret_without_key, token_of};

    /// The check of a Secret that contains a CA certificate without its key.
    fn found(signing: KeylessSigning) -> Finding {
        let key = ObjectKey::new("tenant-a", "prod-1");
        ca(&key, &Ok(Some(ca_secret_without_key())), signing)
    }

    #[test]
    fn a_ca_key_that_overrides_the_external_signer_is_a_warning() {
        let key = ObjectKey::new("tenant-a", "prod-1");
        let found = |signing| ca(&key, &Ok(Some(ca_secret())), signing);

        let unused = found(KeylessSigning::Unused);
        assert_eq!(unused.state, State::Warn, "{unused:?}");
        assert_eq!(
            unused.what,
            "Secret tenant-a/prod-1-ca has a tls.key, and the controller signs with it instead of its external signer"
        );
        for signing in [
            KeylessSigning::External,
            KeylessSigning::Absent,
            KeylessSigning::Unknown,
        ] {
            let finding = found(signing);
            assert_eq!(finding.state, State::Pass, "{finding:?}");
            assert!(finding.what.ends_with("with a matching key"), "{finding:?}");
        }
    }

    #[test]
    fn a_ca_without_a_key_passes_if_an_external_signer_has_the_key() {
        let finding = found(KeylessSigning::External);

        assert_eq!(finding.state, State::Pass, "{finding:?}");
        let words = "without a key: the controller's external signer signs";
        assert!(finding.what.ends_with(words), "{finding:?}");
    }

    #[test]
    fn a_ca_without_key_and_signer_fails_the_check_with_both_remedies() {
        for (signing, state, words) in [
            (
                KeylessSigning::Absent,
                State::Fail,
                "has no tls.key, and the controller has no external signer: no request is answered",
            ),
            (
                KeylessSigning::Unknown,
                State::Warn,
                "has no tls.key; it is unknown whether the controller has an external signer",
            ),
        ] {
            let finding = found(signing);

            assert_eq!(finding.state, state, "{finding:?}");
            assert!(finding.what.ends_with(words), "{finding:?}");
            assert_eq!(
                finding.cure,
                "put the CA's key into tls.key, or start the controller with --signer-endpoint if another program \
                 holds the key"
            );
        }
    }

    #[test]
    fn a_token_that_does_not_outlive_an_outage_is_a_warning() {
        let claims = |seconds: u64| {
            let sub = "system:serviceaccount:node-attestation-system:node-attestation-controller";
            let token = token_of(&serde_json::json!({"sub": sub, "iat": 0, "exp": seconds}));
            TokenClaims::of(&token).unwrap()
        };
        let found = |claims: Option<&TokenClaims>| answering("https://a:6443/", claims);

        for long in [None, Some(claims(30 * 24 * 3600))] {
            let finding = found(long.as_ref());
            assert_eq!(finding.state, State::Pass, "{finding:?}");
            assert_eq!(finding.what, "https://a:6443/ answers");
        }
        let finding = found(Some(&claims(24 * 3600)));
        assert_eq!(finding.state, State::Warn, "{finding:?}");
        assert!(
            finding.what.contains("the token is valid for only 24 h"),
            "{finding:?}"
        );
    }
}
