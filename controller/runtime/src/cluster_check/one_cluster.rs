//! The checks for one Cluster.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams};
use kubelet_attestation::errors::error_chain;
use node_attestation_core::crd::conditions::{self, ATTESTORS_AVAILABLE, READY};
use node_attestation_core::crd::{KubeletAuthentication, KubeletAuthenticationSpec, NodeIdentity};
use node_attestation_core::verifier::Verifiers;
use tokio::time::timeout;

use super::workload::{self, Workload};
use super::{Checked, DEADLINE, Finding, secrets, some, within};
use crate::capi::{
    CapiInventory, ObjectKey, Recorded, TokenClaims, ca_secret_name, required_cluster_resource,
};
use crate::client::{CallError, ClusterAccess, EgressPolicy, call};
use crate::clock;
use crate::cluster_states::ClusterState;
use crate::hardening::other_approvers::OtherApprovers;
use crate::identities::{Identities, IdentitiesError};
use crate::keyless_signing::KeylessSigning;
use crate::management::not_served::{CaSecret, not_served, reported};
use crate::management::spec_mapping::{counted, unauthorized};
use crate::preflight;
use crate::watch::{Custom, NoFields, all_metadata_of};

/// Runs all checks for a Cluster.
pub(super) async fn checks(
    management: &ClusterAccess,
    key: &ObjectKey,
    state: &ClusterState,
    (egress, controller_namespace): (EgressPolicy, &str),
) -> Vec<Checked> {
    let Some(authentication) = &state.kubelet_authentication else {
        let finding = authentication(state, None);
        return vec![finding.checked(Some(key), "authentication")];
    };
    let spec = &authentication.spec;
    let name = ca_secret_name(&key.name);
    let ca = timeout(DEADLINE, secrets::read(management, key, &name)).await;
    let ca = ca.unwrap_or(Err(CallError::Deadline(DEADLINE)));
    let not_ready = not_ready(management, key, authentication, CaSecret::of(&ca)).await;
    let signing = KeylessSigning::of(authentication);
    let mut findings = vec![
        ("authentication", self::authentication(state, not_ready)),
        ("ca", secrets::ca(key, &ca, signing)),
    ];
    let records = Identities::new(management);
    let records = records.list(Some(&key.namespace), Some(&key.name)).await;
    let live = records.map(|all| {
        let live = all.into_iter().filter(|one| one.spec.tombstone.is_none());
        live.collect::<Vec<_>>()
    });
    findings.push(("identities", within(machines(management, key, &live)).await));
    findings.extend(
        live.as_ref()
            .ok()
            .map(|live| ("attestors", attestors(spec, live))),
    );
    let templates = templates(management, key, live.as_deref().ok());
    findings.push(("templates", within(templates).await));

    let access = secrets::kubeconfig(management, key, (egress, controller_namespace)).await;
    let named = live.ok().map(|live| {
        let names = live.into_iter().map(|one| one.spec.node_name);
        names.collect::<BTreeSet<_>>()
    });
    let unavailable = unavailable(authentication).map(|condition| condition.message.as_str());
    let signs_serving = signs_serving(authentication);
    let of_workload = Box::pin(of_workload(
        access,
        spec,
        named,
        (unavailable, signs_serving),
    ));
    findings.extend(of_workload.await);
    findings
        .into_iter()
        .map(|(name, finding)| finding.checked(Some(key), name))
        .collect()
}

/// Runs the checks that call the workload cluster. `access` also contains the claims of the user's token, if the user
/// has a token that expires. `named` contains the node names in the Cluster's records, or is `None` if the records
/// could not be read. The last argument is from the controller's conditions: the message about unavailable attestation
/// providers, and whether only the controller signs serving certificates.
pub(super) async fn of_workload(
    access: Result<(ClusterAccess, Option<TokenClaims>), Finding>,
    spec: &KubeletAuthenticationSpec,
    named: Option<BTreeSet<String>>,
    (unavailable, signs_serving): (Option<&str>, bool),
) -> Vec<(&'static str, Finding)> {
    let answered = match access {
        Err(finding) => Err(finding),
        Ok((access, claims)) => match call(preflight::info(access.client())).await {
            Ok(version) => Ok((access, claims, version)),
            Err(error) => Err(Finding::failed(&error, "call the workload cluster")),
        },
    };
    let (access, claims, version) = match answered {
        Ok(answered) => answered,
        Err(finding) => {
            let skipped = || Finding::skip("cannot call the workload cluster");
            let mut findings = vec![("kubeconfig", finding)];
            findings.extend(workload::CHECKS.map(|name| (name, skipped())));
            return findings;
        }
    };
    let workload = Workload {
        client: access.client(),
        spec,
        unavailable,
        signs_serving,
    };
    let (rights, user, ways, approvers, policy, nodes, requests, versions) = tokio::join!(
        within(workload.rights()),
        within(workload.user()),
        within(workload.ways_in()),
        within(workload.approvers()),
        within(workload.policy()),
        within(workload.nodes(named.as_ref())),
        within(workload.requests()),
        within(workload.evidence_versions()),
    );
    let kubeconfig = secrets::answering(access.server(), claims.as_ref());
    let findings = [
        Workload::version(version),
        rights,
        user,
        ways,
        approvers,
        policy,
        nodes,
        requests,
        versions,
    ];
    let mut all = vec![("kubeconfig", kubeconfig)];
    all.extend(workload::CHECKS.into_iter().zip(findings));
    all
}

/// The condition about attestation providers for which the controller has no verifier.
fn unavailable(authentication: &KubeletAuthentication) -> Option<&Condition> {
    let status = authentication.status.as_ref()?;
    let available = conditions::find(&status.conditions, ATTESTORS_AVAILABLE)?;
    (available.status == "False").then_some(available)
}

/// Whether only the controller signs serving certificates, according to its condition.
fn signs_serving(authentication: &KubeletAuthentication) -> bool {
    let status = authentication.status.as_ref();
    let condition = status.and_then(|status| {
        conditions::find(&status.conditions, conditions::NO_OTHER_SERVING_APPROVER)
    });
    condition.is_some_and(|condition| OtherApprovers::is_signing(&condition.message))
}

/// The reason why the controller does not serve the Cluster, which is the same as in `explain`.
async fn not_ready(
    management: &ClusterAccess,
    key: &ObjectKey,
    authentication: &KubeletAuthentication,
    ca: CaSecret<'_>,
) -> Option<String> {
    let inventory = CapiInventory::of_command(management.client().clone(), key.clone());
    let read = timeout(DEADLINE, Box::pin(inventory.read_cluster())).await;
    let Ok(Ok(cluster)) = read else {
        return reported(authentication);
    };
    // Only the condition contains the reasons that depend on the controller's options.
    let verifiers = |_: &KubeletAuthentication, _: &str| Verifiers::default();
    not_served(
        authentication,
        cluster.as_ref(),
        ca,
        &verifiers,
        clock::now(),
    )
}

/// Checks that the Cluster has a `KubeletAuthentication` that is Ready. `not_ready` is the reason why the controller
/// does not serve the Cluster.
pub(super) fn authentication(state: &ClusterState, not_ready: Option<String>) -> Finding {
    if let Some(error) = &state.unreadable {
        return Finding::fail(
            format!("cannot parse the KubeletAuthentication: {error}"),
            "correct the object, or recreate it",
        );
    }
    let Some(authentication) = &state.kubelet_authentication else {
        return Finding::warn(
            "no KubeletAuthentication: the Cluster is not managed",
            "create a KubeletAuthentication to authorize attestation providers",
        );
    };
    let status = authentication.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    if let (Some(_), Some(why)) = (ready, not_ready) {
        let cure = "fix the problem that the message describes";
        return Finding::fail(format!("not Ready, {why}"), cure);
    }
    match ready {
        Some(ready) if ready.status == "False" => Finding::warn(
            format!(
                "the cause was removed, but the condition is still False, {}: {}",
                ready.reason, ready.message
            ),
            "wait; if the condition does not change, read the controller's log",
        ),
        Some(ready) if ready.status == "True" => match unavailable(authentication) {
            None => Finding::pass("Ready"),
            Some(condition) => Finding::warn(
                format!(
                    "Ready, but attestors are unavailable ({}): {}",
                    condition.reason, condition.message
                ),
                "remove the attestor from spec.authorizedAttestors, or fix the problem that the message describes",
            ),
        },
        Some(ready) => Finding::warn(
            format!("Ready is unknown, {}: {}", ready.reason, ready.message),
            "wait; if the status stays unknown, read the controller's log",
        ),
        None => Finding::fail(
            "the KubeletAuthentication has no condition Ready: no controller has processed it",
            "check that the controller runs, and that its options --namespace and --watch-filter select this Cluster",
        ),
    }
}

/// Checks that the Machine of every live record exists.
async fn machines(
    management: &ClusterAccess,
    key: &ObjectKey,
    live: &Result<Vec<NodeIdentity>, IdentitiesError>,
) -> Finding {
    let live = match live {
        Ok(live) => live,
        Err(error) => return Finding::failed(error, "list nodeidentities"),
    };
    let machines = match machine_names(management, key).await {
        Ok(machines) => machines,
        Err(error) => return Finding::failed(&error, "list machines"),
    };
    let without = live.iter().filter(|one| {
        // If a pool member has no Machine, the member is reported by its provider ID.
        let machine = one.spec.machine_name.as_deref();
        machine.is_some_and(|name| !name.contains("://") && !machines.contains(name))
    });
    let without: Vec<_> = without.map(|one| one.spec.node_name.clone()).collect();
    if without.is_empty() {
        Finding::pass(format!("{}, each with its Machine", live.len()))
    } else {
        Finding::warn(
            format!("node identities without a Machine: {}", some(&without)),
            "the controller retires these node identities after 10 minutes; if it does not, read the controller's log",
        )
    }
}

/// Checks that each live record's attestation provider is authorized. Otherwise, the node cannot renew.
fn attestors(spec: &KubeletAuthenticationSpec, live: &[NodeIdentity]) -> Finding {
    let is_revoked = |one: &NodeIdentity| {
        let revoked = one.spec.revoked.as_ref();
        revoked.is_some_and(|revoked| revoked.generation >= one.spec.generation)
    };
    let renewing = live.iter().filter(|one| !is_revoked(one));
    let unauthorized = unauthorized(spec, renewing.map(|one| one.spec.attestor.as_str()));
    if unauthorized.is_empty() {
        Finding::pass(format!(
            "authorized: {}",
            spec.authorized_attestors.join(", ")
        ))
    } else {
        let what = format!(
            "nodes cannot renew, because the attestor of their node identity is not authorized: {}",
            counted(&unauthorized)
        );
        Finding::warn(
            what,
            "list the nodes with `identities list`; move them to an authorized attestor, or authorize their attestor again",
        )
    }
}

/// Checks that the next machines can join after attestation is enforced. `live` contains the live node identities, or is
/// `None` if they could not be read.
async fn templates(
    management: &ClusterAccess,
    key: &ObjectKey,
    live: Option<&[NodeIdentity]>,
) -> Finding {
    let Some(live) = live else {
        return Finding::skip("cannot read the node identities");
    };
    let inventory = CapiInventory::of_command(management.client().clone(), key.clone());
    let found = inventory.without_plugin(&Recorded::of_live(live)).await;
    match found {
        Err(error) => Finding::fail(
            error_chain(&error),
            "your user needs the permission to list kubeadmcontrolplanes, machinedeployments, machinepools and \
             machines, and to get clusters, their control planes, kubeadmconfigs and kubeadmconfigtemplates",
        ),
        Ok(without) if without.is_empty() => Finding::pass(
            "each bootstrap template contains the plugin, or has a machine with a node identity",
        ),
        Ok(without) => Finding::warn(
            format!("without the plugin: {}", some(&without)),
            "add the plugin to these bootstrap templates. Until then, autoApproveBindings: Remove waits; if you \
             enforce attestation anyway, new machines from these templates cannot join",
        ),
    }
}

async fn machine_names(
    management: &ClusterAccess,
    key: &ObjectKey,
) -> Result<BTreeSet<String>, CallError> {
    let client = management.client();
    let mut resource = call(required_cluster_resource(client)).await?;
    "Machine".clone_into(&mut resource.kind);
    "machines".clone_into(&mut resource.plural);
    let api: Api<Custom<NoFields>> =
        Api::namespaced_with(client.clone(), &key.namespace, &resource);
    let all = all_metadata_of(&api, ListParams::default()).await?;
    Ok(all
        .into_iter()
        .filter_map(|one| one.metadata.name)
        .collect())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::State;
    use super::*;

    /// A live node identity for a node with this attestation provider.
    fn identity(node: &str, attestor: &str, revoked: Value) -> NodeIdentity {
        let mut spec = json!({
            "clusterName": "prod-1", "nodeName": node, "uid": "07".repeat(16),
            "providerID": format!("metal:///{node}"), "attestor": attestor, "generation": 2,
            "opened": {
                "keySHA256": "00".repeat(32), "requestName": "csr", "requestUID": "uid",
                "time": "2026-11-28T12:00:00Z",
            },
            "notAfter": "2026-11-29T12:00:00Z",
        });
        spec["revoked"] = revoked;
        NodeIdentity::new(node, serde_json::from_value(spec).unwrap())
    }

    #[test]
    fn the_condition_shows_that_only_the_controller_signs() {
        let with = |message: &str| {
            let spec = KubeletAuthenticationSpec::new("prod-1", &["aws"]);
            let mut authentication = KubeletAuthentication::new("prod-1", spec);
            let status = json!({"conditions": [{
                "type": "NoOtherServingApprover", "status": "True", "reason": "NoneFound",
                "message": message, "lastTransitionTime": "2027-01-01T00:00:00Z",
            }]});
            authentication.status = Some(serde_json::from_value(status).unwrap());
            authentication
        };
        let signing = OtherApprovers::default().with_signers().to_string();
        assert!(signs_serving(&with(&signing)));
        assert!(!signs_serving(&with(
            &OtherApprovers::default().to_string()
        )));
        let mut without = with(&signing);
        without.status = None;
        assert!(!signs_serving(&without));
    }

    #[test]
    fn node_identities_that_cannot_renew_fail_the_attestor_check() {
        let spec = KubeletAuthenticationSpec::new("prod-1", &["tpm", "aws"]);
        let revoked =
            |generation: u64| json!({"generation": generation, "at": "2026-11-28T13:00:00Z"});
        let live = identity("live", "tpm", Value::Null);
        let removed = identity("removed", "insecure", Value::Null);
        let before = identity("before", "insecure", revoked(1));
        let revoked = identity("revoked", "insecure", revoked(2));

        let passed = attestors(&spec, &[live.clone(), revoked.clone()]);
        assert_eq!(passed.state, State::Pass, "{passed:?}");
        assert_eq!(passed.what, "authorized: tpm, aws");

        for (removed, count) in [(vec![removed.clone()], 1), (vec![removed, before], 2)] {
            let all = [vec![live.clone(), revoked.clone()], removed].concat();
            let found = attestors(&spec, &all);
            assert_eq!(found.state, State::Warn, "{found:?}");
            let expected = format!(
                "nodes cannot renew, because the attestor of their node identity is not authorized: insecure ({count})"
            );
            assert_eq!(found.what, expected);
        }
    }
}
