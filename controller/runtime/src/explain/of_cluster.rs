//! Explains requests in a Cluster of a management cluster, using the same data as the Cluster's controller.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kubelet_attestation::errors::error_chain;
use kubelet_attestation::names::{Audience, Provider};
use node_attestation_core::crd::conditions::{self, ATTESTORS_AVAILABLE, ConditionStatus, reason};
use node_attestation_core::crd::{
    EndorsementKeyPlatform, KubeletAuthentication, KubeletAuthenticationSpec,
};
use node_attestation_core::decide::Context;
use node_attestation_core::ledger::{
    Absences, RecordLedger, Records, Rehearsal, RevocationDecisions, Revocations,
};
use node_attestation_core::log_lines::Unlimited;
use node_attestation_core::nodes::ReadOnlyNodes;
use node_attestation_core::signer::Signer;
use node_attestation_core::verifier::Verifiers;
use tokio::time::{Instant, sleep, timeout};

use super::snapshot::ClusterSnapshot;
use super::{BoxError, ExplainError, Explainer, Offline};
use crate::capi::{
    CaRefused, CapiInventory, ClusterCa, ObjectKey, TenantKubeconfig, ca_secret_name,
    kubeconfig_secret_name,
};
use crate::client::{CallError, ClusterAccess, EgressPolicy, call};
use crate::clock;
use crate::hardening::{admission, revocation, service_ranges};
use crate::keyless_signing::KeylessSigning;
use crate::management::configuration::{CheckedSpec, Configuration, Dependencies, InvalidSpec};
use crate::management::not_served::{CaSecret, not_served};
use crate::management::spec_mapping::stays_enforced;
use crate::metrics::Metrics;
use crate::nodes::KubeNodes;
use crate::records::KubeRecords;
use crate::watch::readable_one_of;

/// The deadline for reading the data before the checks run.
const READ_DEADLINE: Duration = Duration::from_secs(30);

/// The interval for checking whether the records are loaded.
const LOOK: Duration = Duration::from_millis(50);

impl Explainer {
    /// Creates an explainer for the Cluster, which uses the permissions of the user in `management`.
    ///
    /// Without `workload`, Cluster API's kubeconfig determines the API server, if the policy `egress` allows the
    /// server's address. `verifiers` must not call a service.
    ///
    /// # Errors
    ///
    /// Returns an error if data that every check needs cannot be read.
    pub async fn of_cluster(
        management: &ClusterAccess,
        key: &ObjectKey,
        workload: Option<ClusterAccess>,
        egress: EgressPolicy,
        verifiers: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
    ) -> Result<Self, ExplainError> {
        let explainer = read(management, key, workload, egress, verifiers);
        let explainer = timeout(READ_DEADLINE, explainer).await;
        let late = || {
            format!(
                "reading its objects took longer than {} s",
                READ_DEADLINE.as_secs()
            )
        };
        let explainer = explainer.unwrap_or_else(|_| Err(late().into()));
        explainer.map_err(|source| ExplainError::Cluster {
            cluster: key.clone(),
            source,
        })
    }
}

async fn read(
    management: &ClusterAccess,
    key: &ObjectKey,
    workload: Option<ClusterAccess>,
    egress: EgressPolicy,
    verifiers_of: impl Fn(&KubeletAuthentication, &str) -> Verifiers,
) -> Result<Explainer, BoxError> {
    let mut notes = Vec::new();
    let client = management.client();
    let snapshot = ClusterSnapshot::read(client, key).await?;
    let authentication = &snapshot.authentication;
    let spec = &authentication.spec;
    let Some(cluster) = &snapshot.cluster else {
        let (ca, now) = (CaSecret::Unread, clock::now());
        let why = not_served(authentication, None, ca, &verifiers_of, now);
        return Err(why.unwrap_or_else(|| "no Cluster".to_owned()).into());
    };
    let name = ca_secret_name(&key.name);
    let found = secret(management, &key.namespace, &name).await;
    let (ca, now) = (CaSecret::of(&found), clock::now());
    let not_ready = not_served(authentication, Some(cluster), ca, &verifiers_of, now);
    let access = match workload {
        Some(access) => Ok(access),
        None => by_secret(management, key, egress).await,
    };
    let access = access.map_err(|error| after_reason(not_ready.as_deref(), error))?;
    let why = |invalid: InvalidSpec| {
        let first = not_ready.clone();
        first.unwrap_or_else(|| invalid.to_string())
    };
    let checked = CheckedSpec::of(spec).map_err(why)?;
    let offline = Offline::default();
    let verifiers = verifiers_of(authentication, &cluster.uid);
    let verifiers = offline.verifiers(verifiers, &named_by_platform(spec));
    let trusted = access.ca_certificates();
    let signing = KeylessSigning::of(authentication);
    let (signed_by, of_ca, signer) = signer_of(found, &name, trusted, signing, &mut notes)?;

    let wanted = stays_enforced(spec);
    let enforced = admission::is_enforced(access.client()).await;
    if let Err(error) = &enforced {
        let error = error_chain(error);
        notes.push(format!(
            "cannot determine whether attestation is enforced: {error}"
        ));
    }
    notes.extend(unavailable_attestors(authentication));
    let records = KubeRecords::start(
        client.clone(),
        &key.namespace,
        &key.name,
        &Metrics::default(),
    );
    are_read(&records).await?;
    let latest = management.server_time().later(clock::now());
    let revocations = revocations(&access, (authentication, latest), &mut notes).await;
    let of_cas = trusted.iter().map(|der| Audience::of_ca(der)).chain(of_ca);
    let cluster = cluster.clone();
    let context = Configuration::new(spec, checked, cluster, of_cas, verifiers, signer).context(
        Dependencies {
            nodes: KubeNodes::new(access.client().clone()),
            endpoint_hosts: access.server_host().into_iter().collect(),
            inventory: Arc::new(CapiInventory::new(snapshot.objects.clone(), key.clone())),
            records: Arc::new(records),
            absences: Absences::default(),
            revocations,
            lines: Arc::new(Unlimited),
        },
    );
    let context = rehearsed(context, &access);
    // If the state is unknown, requests to built-in signers remain pending, as in the controller.
    if let Ok(enforced) = enforced {
        context.enforcement.set(wanted && enforced);
    }
    notes.extend(read_service_ranges(&context, &access).await);
    Ok(Explainer {
        context,
        workload: Some(access),
        management: Some((management.clone(), key.clone())),
        signed_by,
        not_ready,
        offline,
        notes,
        _watches: snapshot.watches,
    })
}

/// Returns the error about the kubeconfig, preceded by the reason why the Cluster is not served. That reason is omitted
/// if it is also about the kubeconfig.
fn after_reason(not_ready: Option<&str>, error: BoxError) -> BoxError {
    let of_kubeconfig = [reason::KUBECONFIG_NOT_FOUND, reason::KUBECONFIG_REFUSED];
    let is_other = |why: &&str| !of_kubeconfig.iter().any(|reason| why.starts_with(reason));
    match not_ready.filter(is_other) {
        Some(why) => format!("{why}; {}", error_chain(&*error)).into(),
        None => error,
    }
}

/// Returns a note about attestation providers for which the controller has no verifier. The note is based on the
/// controller's condition, because this command does not know the controller's options.
fn unavailable_attestors(authentication: &KubeletAuthentication) -> Option<String> {
    let conditions = &authentication.status.as_ref()?.conditions;
    let condition = conditions::find(conditions, ATTESTORS_AVAILABLE)?;
    let is_false = condition.status == ConditionStatus::False.to_string();
    is_false.then(|| {
        format!(
            "some attestors are not available to the controller ({ATTESTORS_AVAILABLE} is False): {}",
            condition.message
        )
    })
}

/// The revoked certificates, from the list in the workload cluster and from operators' decisions.
async fn revocations(
    access: &ClusterAccess,
    (authentication, now): (&KubeletAuthentication, SystemTime),
    notes: &mut Vec<String>,
) -> Revocations {
    let revocations = Revocations::default();
    let annotations = authentication.metadata.annotations.as_ref();
    let decisions = RevocationDecisions::of_annotations(annotations);
    revocations.decide(decisions.until(now));
    notes.extend(RevocationDecisions::unread(annotations));
    match revocation::read(access.client()).await {
        Ok(list) => revocations.read(list),
        Err(error) => {
            let error = error_chain(&error);
            notes.push(format!(
                "cannot read the list of revoked certificates: {error}"
            ));
        }
    }
    revocations
}

/// Reads the Service addresses in the same way as the controller. Returns a note if they cannot be read.
async fn read_service_ranges(context: &Context, access: &ClusterAccess) -> Option<String> {
    match service_ranges::read(access.client()).await {
        Ok(read) => {
            let known = &context.serving.service_ranges;
            known.add(read.ranges, read.are_all);
            None
        }
        Err(error) => Some(format!(
            "cannot read the addresses of Services: {}",
            error_chain(&error)
        )),
    }
}

/// The CA in a Secret cannot be used.
#[derive(Debug, thiserror::Error)]
enum UnusableCa {
    #[error("cannot read Secret {name}")]
    Unread { name: String, source: CallError },
    #[error("Secret {0} does not exist")]
    Absent(String),
    #[error("Secret {name} is not accepted")]
    Refused { name: String, source: CaRefused },
}

/// The CA in the Secret with this name.
fn accepted(found: Result<Option<Secret>, CallError>, name: &str) -> Result<ClusterCa, UnusableCa> {
    let name = || name.to_owned();
    let secret = found.map_err(|source| UnusableCa::Unread {
        name: name(),
        source,
    })?;
    let secret = secret.ok_or_else(|| UnusableCa::Absent(name()))?;
    ClusterCa::from_secret(&secret).map_err(|source| UnusableCa::Refused {
        name: name(),
        source,
    })
}

/// The name of the program that signs, the audiences of the CA in the Secret with this name, and a signer for the
/// checks. If the Secret cannot be used, the first of the `trusted` certificates replaces its CA.
fn signer_of(
    found: Result<Option<Secret>, CallError>,
    name: &str,
    trusted: &[Vec<u8>],
    signing: KeylessSigning,
    notes: &mut Vec<String>,
) -> Result<(String, Vec<Audience>, Arc<Signer>), BoxError> {
    match accepted(found, name) {
        Ok(ca) => {
            let (who, signer) = signing_of(&ca, name, signing, notes)?;
            Ok((who, ca.audiences().collect(), signer))
        }
        Err(why) => {
            let why = error_chain(&why);
            notes.push(format!(
                "{why}; the checks assume that the Secret has the kubeconfig's CA and the key of this CA"
            ));
            let ca = trusted.first().ok_or("the kubeconfig has no CA")?;
            let who = format!("the controller, with the CA of Secret {name}");
            Ok((who, Vec::new(), rehearsed_signer(ca)?))
        }
    }
}

/// The name of the program that signs with the CA of this Secret, and a signer for that CA.
fn signing_of(
    ca: &ClusterCa,
    name: &str,
    signing: KeylessSigning,
    notes: &mut Vec<String>,
) -> Result<(String, Arc<Signer>), BoxError> {
    let der = ca.certificates().first();
    let signer = rehearsed_signer(der.ok_or("the CA has no certificate")?)?;
    let who = match (ca.signer(), signing) {
        (Some(_), _) => format!("the controller, with the CA of Secret {name}"),
        (None, KeylessSigning::External) => {
            format!("the controller, with its external signer and the CA of Secret {name}")
        }
        (None, KeylessSigning::Absent) => {
            notes.push(format!(
                "the controller does not answer requests from the Cluster until Secret {name} has the CA key or the \
                 controller has an external signer (--signer-endpoint); the checks assume an external signer"
            ));
            format!("no signer: Secret {name} has no tls.key")
        }
        (None, KeylessSigning::Unused | KeylessSigning::Unknown) => {
            notes.push(format!(
                "Secret {name} has no tls.key, and the Cluster is not Ready, so it is unknown whether the controller has \
                 an external signer (--signer-endpoint), which is required to answer requests; the checks assume an \
                 external signer"
            ));
            format!("an external signer, if the controller has one: Secret {name} has no tls.key")
        }
    };
    Ok((who, signer))
}

/// Returns the context with a ledger that does not write.
fn rehearsed(context: Context, access: &ClusterAccess) -> Context {
    let ledger = RecordLedger::new(
        Arc::new(Rehearsal::over(context.ledger.records().clone())),
        context.inventory.clone(),
        Arc::new(ReadOnlyNodes(KubeNodes::new(access.client().clone()))),
        *context.ledger.policy(),
        context.enforcement.clone(),
    )
    .with_revocations(context.ledger.revocations().clone());
    Context {
        ledger: Arc::new(ledger),
        ..context
    }
}

/// Creates a signer that has the name of this CA and a random key.
pub(super) fn rehearsed_signer(der: &[u8]) -> Result<Arc<Signer>, BoxError> {
    let pem = pem::encode(&pem::Pem::new("CERTIFICATE", der));
    Ok(Arc::new(Signer::rehearsal(pem.as_bytes())?))
}

/// The providers whose platform reports Node names. This command does not call the platform.
pub(super) fn named_by_platform(spec: &KubeletAuthenticationSpec) -> Vec<Provider> {
    let tpm = spec.tpm.as_ref();
    let asks = tpm.is_some_and(|tpm| tpm.endorsement_keys.platform == EndorsementKeyPlatform::Aws);
    let tpm = asks.then_some(Provider::TPM);
    [Provider::AWS].into_iter().chain(tpm).collect()
}

async fn secret(
    management: &ClusterAccess,
    namespace: &str,
    name: &str,
) -> Result<Option<Secret>, CallError> {
    let api: Api<Secret> = Api::namespaced(management.client().clone(), namespace);
    call(readable_one_of(&api, name)).await
}

/// Creates access to the workload cluster with Cluster API's kubeconfig.
pub(crate) async fn by_secret(
    management: &ClusterAccess,
    key: &ObjectKey,
    egress: EgressPolicy,
) -> Result<ClusterAccess, BoxError> {
    const OTHERWISE: &str = "use --workload-kubeconfig to specify a different kubeconfig";
    let name = kubeconfig_secret_name(&key.name);
    let found = secret(management, &key.namespace, &name).await;
    let found = found.map_err(|error| {
        let error = error_chain(&error);
        format!("cannot read Secret {name} ({OTHERWISE}): {error}")
    })?;
    let found = found.ok_or_else(|| format!("Secret {name} does not exist ({OTHERWISE})"))?;
    let refused = |error| {
        format!(
            "Secret {name} is not accepted ({OTHERWISE}): {}",
            error_chain(&error)
        )
    };
    let kubeconfig = TenantKubeconfig::from_secret(&found, egress).map_err(refused)?;
    Ok(kubeconfig.access(key).map_err(refused)?)
}

/// Waits until the records are loaded.
pub(super) async fn are_read(records: &KubeRecords) -> Result<(), BoxError> {
    let end = Instant::now() + READ_DEADLINE / 2;
    loop {
        match records.all().await {
            Ok(_) => return Ok(()),
            Err(error) if Instant::now() > end => {
                let error = error_chain(&error);
                return Err(format!("cannot read its NodeIdentities: {error}").into());
            }
            Err(_) => sleep(LOOK).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capi::ca_secret_without_key;

    /// The name of the program that signs with a CA key that is not in a Secret, and notes about this program.
    fn signed_by(signing: KeylessSigning) -> (String, Vec<String>) {
        let ca = ClusterCa::from_secret(&ca_secret_without_key()).unwrap();
        let mut notes = Vec::new();
        let (who, _) = signing_of(&ca, "prod-1-ca", signing, &mut notes).unwrap();
        (who, notes)
    }

    #[test]
    fn an_error_about_the_kubeconfig_follows_the_reason_of_the_cluster() {
        let of = |not_ready| after_reason(not_ready, "no kubeconfig".into()).to_string();

        assert_eq!(of(None), "no kubeconfig");
        assert_eq!(
            of(Some("Paused: the Cluster is paused")),
            "Paused: the Cluster is paused; no kubeconfig"
        );
        for reason in ["KubeconfigNotFound: a", "KubeconfigRefused: b"] {
            assert_eq!(of(Some(reason)), "no kubeconfig");
        }
    }

    #[test]
    fn a_ca_without_a_key_signs_with_the_external_signer() {
        let (who, notes) = signed_by(KeylessSigning::External);

        assert_eq!(
            who,
            "the controller, with its external signer and the CA of Secret prod-1-ca"
        );
        assert_eq!(notes, Vec::<String>::new());
    }

    #[test]
    fn a_ca_without_a_key_and_without_an_external_signer_has_a_note() {
        for (signing, expected, words) in [
            (
                KeylessSigning::Absent,
                "no signer: Secret prod-1-ca has no tls.key",
                "does not answer requests from the Cluster until Secret prod-1-ca has the CA key",
            ),
            (
                KeylessSigning::Unknown,
                "an external signer, if the controller has one: Secret prod-1-ca has no tls.key",
                "it is unknown whether the controller has an external signer (--signer-endpoint)",
            ),
        ] {
            let (who, notes) = signed_by(signing);

            assert_eq!(who, expected);
            let [note] = notes.as_slice() else {
                panic!("{notes:?}");
            };
            assert!(note.contains(words), "{note}");
            assert!(note.contains("--signer-endpoint"), "{note}");
        }
    }
}
