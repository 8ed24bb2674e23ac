//! Revocation: certificates whose writes are refused.
//!
//! Kubernetes cannot revoke client certificates. Here a cluster-scoped `RevokedNodeCredentials`
//! object has, for each record, the lowest generation that is valid, and a
//! `ValidatingAdmissionPolicy` refuses every write by a `system:node:*` user whose UID
//! (`<record>.<generation>`) has a lower one. A UID is inside the signed part of a certificate; a
//! certificate of the next generation of the same node stays valid.
//!
//! There is one entry a record however many generations it had, so none of them is forgotten while
//! a certificate of it may be valid.
//!
//! It does not stop reads, reviews of tokens and access (no admission policy sees them), and
//! certificates without a UID, such as kube-controller-manager's.
//!
//! # When something is missing
//!
//! - The object, or the definition of its kind: nothing is refused until the next [`apply`] puts it
//!   back (`parameterNotFoundAction: Allow`). `Deny` would stop every node of the cluster.
//! - A policy that cannot be evaluated lets pass (`failurePolicy: Ignore`). With `Fail` a missing
//!   definition would refuse every write of *everybody* after the next start of the API server, and
//!   with them the one that brings the definition back. No requester can bring that about: the
//!   expression reads nothing of a request but the user's name and UID.
//! - Nothing is revoked: there is no binding, so that the usual cost is nothing. The definition and
//!   the unbound policy stay.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::api::admissionregistration::v1::{
    ParamKind, ParamRef, ValidatingAdmissionPolicyBinding,
};
use kube::{Client, Resource as _};
use kubelet_attestation::ensure;
use node_attestation_core::crd::{
    MAX_REVOKED, REVOKED_NODE_CREDENTIALS, RevokedNodeCredentials, RevokedNodeCredentialsSpec,
    workload_manifest,
};
use node_attestation_core::identifiers::RecordUid;
use node_attestation_core::ledger::{RevokedGenerations, whole_seconds};
use tokio::time::{Instant, sleep};

use super::access::{HardeningError, delete, get, get_readable, put};
use super::policies::Policy;

/// The name of the policy and of its binding.
pub const POLICY_NAME: &str = "node-attestation-revocation";

/// The longest time until objects of a new definition can be written; a second is usual.
const ESTABLISHING: Duration = Duration::from_secs(15);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The extent of revocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The number of records whose certificates are refused every write.
    pub listed: usize,
    /// The number of records that are left out because the list is full ([`MAX_REVOKED`]): those
    /// whose certificates expire soonest. An operator should know if there are any.
    pub left_out: usize,
}

/// Refuses every write to the workload cluster by a certificate of these generations, and of those that the list has.
/// An entry leaves the list only when its time has passed: records can be older than the list, after the restore of a
/// backup, and then they do not have everything that was revoked.
///
/// # Errors
///
/// It could not be read or written: the list before it stays in force.
pub async fn apply(
    client: &Client,
    desired: &BTreeMap<RecordUid, RevokedGenerations>,
    now: SystemTime,
) -> Result<Revocation, HardeningError> {
    let (spec, revocation) = select(merged(desired, listed(client).await?), now);
    if spec.revoked.is_empty() {
        release(client).await?;
    } else {
        enforce(client, spec).await?;
    }
    Ok(revocation)
}

/// The list that is there. One that cannot be read is replaced, as every object of ours.
async fn listed(client: &Client) -> Result<RevokedNodeCredentialsSpec, HardeningError> {
    match get_readable::<RevokedNodeCredentials>(client, REVOKED_NODE_CREDENTIALS).await {
        Ok(list) => Ok(list.map(|list| list.spec).unwrap_or_default()),
        // Without its definition there is no list.
        Err(error) if error.is_not_found() => Ok(RevokedNodeCredentialsSpec::default()),
        Err(error) => Err(error),
    }
}

/// All entries of both, by the text of the record's UID: the later end, and the higher generation.
fn merged(
    desired: &BTreeMap<RecordUid, RevokedGenerations>,
    listed: RevokedNodeCredentialsSpec,
) -> BTreeMap<String, RevokedGenerations> {
    let mut merged = listed.revoked;
    for (uid, revoked) in desired {
        let entry = merged.entry(uid.to_string()).or_insert(*revoked);
        entry.lowest_valid = entry.lowest_valid.max(revoked.lowest_valid);
        entry.until = entry.until.max(revoked.until);
    }
    merged
}

/// The list, and its extent.
fn select(
    wanted: BTreeMap<String, RevokedGenerations>,
    now: SystemTime,
) -> (RevokedNodeCredentialsSpec, Revocation) {
    let live = wanted
        .into_iter()
        .filter(|(_, revoked)| revoked.until > now);
    let mut live: Vec<_> = live.collect();
    live.sort_unstable_by(|(one, a), (other, b)| {
        b.until.cmp(&a.until).then_with(|| one.cmp(other))
    });
    let revocation = Revocation {
        listed: live.len().min(MAX_REVOKED),
        left_out: live.len().saturating_sub(MAX_REVOKED),
    };
    live.truncate(MAX_REVOKED);
    let entry = |(uid, revoked): (String, RevokedGenerations)| {
        // What is written is whole seconds, and is compared with what is read.
        let entry = RevokedGenerations {
            until: whole_seconds(revoked.until),
            ..revoked
        };
        (uid, entry)
    };
    let revoked = live.into_iter().map(entry).collect();
    (RevokedNodeCredentialsSpec { revoked }, revocation)
}

/// Writes the list before the binding, so that the list in force is complete.
async fn enforce(client: &Client, spec: RevokedNodeCredentialsSpec) -> Result<(), HardeningError> {
    let wanted = RevokedNodeCredentials::new(REVOKED_NODE_CREDENTIALS, spec);
    if let Err(error) = put_list(client, &wanted).await {
        ensure!(error.is_not_found(), error);
        // A definition that is there is left: which version a cluster has is for whoever installed it.
        put(client, &workload_manifest(), |_, _| true).await?;
        // The API server serves a new kind some moments after it has taken the definition.
        let end = Instant::now() + ESTABLISHING;
        while let Err(error) = put_list(client, &wanted).await {
            ensure!(error.is_not_found() && Instant::now() < end, error);
            sleep(PAUSE).await;
        }
    }
    policy().apply(client).await?;
    Ok(())
}

/// Empties the list, if the binding shows that it was in force.
async fn release(client: &Client) -> Result<(), HardeningError> {
    let binding: Option<ValidatingAdmissionPolicyBinding> = get(client, POLICY_NAME).await?;
    if binding.is_none() {
        return Ok(());
    }
    let spec = RevokedNodeCredentialsSpec::default();
    let nothing = RevokedNodeCredentials::new(REVOKED_NODE_CREDENTIALS, spec);
    if let Err(error) = put_list(client, &nothing).await {
        // Without its definition there is no list.
        ensure!(error.is_not_found(), error);
    }
    delete::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME, None).await
}

async fn put_list(
    client: &Client,
    wanted: &RevokedNodeCredentials,
) -> Result<bool, HardeningError> {
    put(client, wanted, |found, wanted| found.spec == wanted.spec).await
}

fn policy() -> Policy {
    let params = ParamKind {
        api_version: Some(RevokedNodeCredentials::api_version(&()).into_owned()),
        kind: Some(RevokedNodeCredentials::kind(&()).into_owned()),
    };
    let list = ParamRef {
        name: Some(REVOKED_NODE_CREDENTIALS.to_owned()),
        parameter_not_found_action: Some("Allow".to_owned()),
        ..ParamRef::default()
    };
    let owned = |(name, expression): (_, &str)| (name, expression.to_owned());
    let conditions = [
        (
            "by-a-node",
            "request.userInfo.username.startsWith('system:node:')",
        ),
        // Whatever passes can be converted below, so that no expression fails.
        (
            "with-the-uid-of-a-record",
            "has(request.userInfo.uid) \
             && request.userInfo.uid.matches('^[0-9a-f]{32}[.][1-9][0-9]{0,17}$')",
        ),
    ];
    let variables = [
        ("record", "request.userInfo.uid.substring(0, 32)"),
        ("generation", "int(request.userInfo.uid.substring(33))"),
    ];
    let is_valid = "!has(params.spec) || !has(params.spec.revoked) \
        || !(variables.record in params.spec.revoked) \
        || variables.generation >= params.spec.revoked[variables.record].lowestValidGeneration";
    let message = "'the credential ' + request.userInfo.uid + ' of ' + request.userInfo.username \
        + ' is revoked'";
    let message = (
        is_valid.to_owned(),
        "this credential is revoked",
        message.to_owned(),
    );
    Policy {
        name: POLICY_NAME,
        // And their subresources.
        about: ["*", "*/*", "*"],
        failure_policy: "Ignore",
        params: Some((params, list)),
        conditions: conditions.map(owned).into(),
        variables: variables.map(owned).into(),
        validations: vec![message],
        actions: &["Deny"],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn uid(record: u32) -> RecordUid {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&record.to_be_bytes());
        RecordUid::new(bytes)
    }

    fn revoked(seconds: u64) -> RevokedGenerations {
        RevokedGenerations {
            lowest_valid: 3,
            until: at(seconds),
        }
    }

    #[test]
    fn an_entry_leaves_when_its_time_has_passed() {
        let desired = BTreeMap::from([(uid(1), revoked(10)), (uid(2), revoked(20))]);

        for (now, listed) in [(0, 2), (9, 2), (10, 1), (19, 1), (20, 0)] {
            let nothing = RevokedNodeCredentialsSpec::default();
            let (spec, revocation) = select(merged(&desired, nothing), at(now));
            assert_eq!(spec.revoked.len(), listed, "at {now}");
            assert_eq!(revocation.listed, listed, "at {now}");
            assert_eq!(revocation.left_out, 0, "at {now}");
        }
    }

    #[test]
    fn an_entry_that_the_records_do_not_have_stays_until_its_end() {
        let of = |lowest_valid, seconds| RevokedGenerations {
            lowest_valid,
            until: at(seconds),
        };
        let listed = RevokedNodeCredentialsSpec {
            revoked: BTreeMap::from([
                (uid(1).to_string(), of(5, 10)),
                (uid(2).to_string(), of(5, 20)),
                (uid(3).to_string(), of(2, 20)),
            ]),
        };
        let desired = BTreeMap::from([(uid(2), of(3, 30)), (uid(3), of(4, 10))]);

        let revoked = |now| select(merged(&desired, listed.clone()), at(now)).0.revoked;

        let first = BTreeMap::from([
            (uid(1).to_string(), of(5, 10)),
            (uid(2).to_string(), of(5, 30)),
            (uid(3).to_string(), of(4, 20)),
        ]);
        assert_eq!(revoked(0), first);
        let left: Vec<_> = revoked(10).into_keys().collect();
        assert_eq!(left, [uid(2), uid(3)].map(|uid| uid.to_string()));
        assert_eq!(revoked(30), BTreeMap::new());
    }

    #[test]
    fn a_full_list_leaves_out_what_expires_soonest() {
        let last = u32::try_from(MAX_REVOKED).unwrap() + 2;
        let desired = (1..=last)
            .map(|n| (uid(n), revoked(1000 + u64::from(n))))
            .collect();

        let nothing = RevokedNodeCredentialsSpec::default();
        let (spec, revocation) = select(merged(&desired, nothing), at(0));

        assert_eq!(spec.revoked.len(), MAX_REVOKED);
        assert_eq!((revocation.listed, revocation.left_out), (MAX_REVOKED, 2));
        for (record, listed) in [(1, false), (2, false), (3, true), (last, true)] {
            let listed_now = spec.revoked.contains_key(&uid(record).to_string());
            assert_eq!(listed_now, listed, "{record}");
        }
    }

    #[test]
    fn what_is_written_equals_what_is_read_back() {
        let until = at(10) + Duration::from_millis(250);
        let revoked = RevokedGenerations {
            until,
            ..revoked(10)
        };
        let entries = BTreeMap::from([(uid(1).to_string(), revoked)]);
        let (spec, _) = select(entries, at(0));

        let text = serde_json::to_string(&spec).unwrap();

        assert_eq!(
            serde_json::from_str::<RevokedNodeCredentialsSpec>(&text).unwrap(),
            spec
        );
    }
}
