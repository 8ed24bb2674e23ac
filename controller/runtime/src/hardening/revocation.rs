//! Revocation: rejects writes that use revoked certificates.
//!
//! Kubernetes cannot revoke client certificates. Instead, a cluster-scoped `RevokedNodeCredentials` object contains the
//! lowest valid generation for each record. A `ValidatingAdmissionPolicy` rejects every write from a `system:node:*`
//! user whose UID (`<record>.<generation>`) has a lower generation. The UID is in the signed part of the certificate. A
//! certificate for the same node with a later generation remains valid.
//!
//! The list has one entry for each record, which covers all revoked generations. Therefore a generation is not removed
//! while one of its certificates can be valid. The lowest valid generation for all records rejects all earlier
//! generations of every record. The list also contains revoked keys and machines. Only the controller uses these
//! entries, because its records might be older than the list.
//!
//! Revocation does not affect reads, token reviews and access reviews, because admission policies do not apply to them.
//! It does not affect certificates without a UID either, such as certificates from kube-controller-manager.
//!
//! # When something is missing
//!
//! - If the object or the definition of its kind is missing, writes are not rejected until the next [`apply`] restores
//!   it (`parameterNotFoundAction: Allow`). `Deny` would stop every node in the cluster.
//! - If the policy cannot be evaluated, the write is allowed (`failurePolicy: Ignore`). With `Fail`, a missing
//!   definition would reject all writes from *all* users after the next start of the API server, including the write
//!   that restores the definition. A requester cannot cause an evaluation error, because the expression reads only the
//!   user's name and UID from a request.
//! - If no certificate is revoked and there is no lowest valid generation, the binding does not exist. The definition
//!   and the unbound policy are kept.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures::future::FutureExt as _;
use k8s_openapi::api::admissionregistration::v1::{
    ParamKind, ParamRef, ValidatingAdmissionPolicyBinding,
};
use kube::{Client, Resource as _};
use kubelet_attestation::ensure;
use kubelet_attestation::names::{NodeName, ProviderId};
use node_attestation_core::crd::{
    MAX_REVOKED, MAX_REVOKED_KEYS, REVOKED_NODE_CREDENTIALS, RevokedNodeCredentials,
    RevokedNodeCredentialsSpec, workload_manifest,
};
use node_attestation_core::identifiers::{KeyDigest, RecordUid};
use node_attestation_core::ledger::{Revocations, whole_seconds};
use tokio::time::{Instant, sleep};

use super::access::{HardeningError, apply_definition, delete, exists, get_readable, put};
use super::policies::Policy;

/// The name of the policy and of its binding.
pub const POLICY_NAME: &str = "node-attestation-revocation";

/// The maximum time until the API server accepts objects for a new definition. The time is usually one second.
const ESTABLISHING: Duration = Duration::from_secs(15);

/// The interval between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// The extent of the revocation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Revocation {
    /// The number of records in the list. Their revoked certificates cannot write.
    pub listed: usize,
    /// The number of records and keys that are omitted because the list is full ([`MAX_REVOKED`],
    /// [`MAX_REVOKED_KEYS`]). Entries with the earliest expiry time are omitted first. If any entry is omitted,
    /// operators must be informed.
    pub left_out: usize,
}

/// Rejects every write to the workload cluster that uses a certificate revoked by the records or by the existing list.
///
/// An entry is removed from the list only after it has expired. Records that were restored from a backup might not
/// contain revocations that are in the list. Afterwards, `revocations` contains the list.
///
/// # Errors
///
/// Returns an error if the list could not be read or written. The previous list then remains in effect.
pub async fn apply(
    client: &Client,
    revocations: &Revocations,
    records: &RevokedNodeCredentialsSpec,
    now: SystemTime,
) -> Result<Revocation, HardeningError> {
    let merged = merged(client, revocations, records, now).await?;
    write(client, revocations, merged).await
}

/// The existing list, merged with the known revocations and the revocations in the records.
///
/// # Errors
///
/// Returns an error if the list could not be read.
pub(crate) async fn merged(
    client: &Client,
    revocations: &Revocations,
    records: &RevokedNodeCredentialsSpec,
    now: SystemTime,
) -> Result<RevokedNodeCredentialsSpec, HardeningError> {
    let listed = read(client).await?;
    let bounded = |list| select(list).0;
    Ok(revocations.merged(listed, records.clone(), bounded, now))
}

/// Writes the merged list. Afterwards, `revocations` contains the list.
///
/// # Errors
///
/// Returns an error if the list could not be written. The previous list then remains in effect.
pub(crate) async fn write(
    client: &Client,
    revocations: &Revocations,
    merged: RevokedNodeCredentialsSpec,
) -> Result<Revocation, HardeningError> {
    // Decisions use the list immediately, before it is written to the workload cluster.
    revocations.read(merged.clone());
    let (spec, revocation) = select(merged);
    if spec == RevokedNodeCredentialsSpec::default() {
        release(client).boxed().await?;
    } else {
        enforce(client, spec).boxed().await?;
    }
    Ok(revocation)
}

/// Reads the existing list, without entries that this controller could not have written.
///
/// A list that cannot be decoded counts as empty and is replaced, like every object that this controller owns.
///
/// # Errors
///
/// Returns an error if the list could not be read.
pub async fn read(client: &Client) -> Result<RevokedNodeCredentialsSpec, HardeningError> {
    match get_readable::<RevokedNodeCredentials>(client, REVOKED_NODE_CREDENTIALS).await {
        Ok(list) => Ok(list.map(|list| ours(list.spec)).unwrap_or_default()),
        // If the definition is missing, the list does not exist either.
        Err(error) if error.is_not_found() => Ok(RevokedNodeCredentialsSpec::default()),
        Err(error) => Err(error),
    }
}

/// Keeps the entries that a controller could have written, up to its limits. A tenant's API server can return arbitrary
/// other entries, which would be kept in memory.
fn ours(mut list: RevokedNodeCredentialsSpec) -> RevokedNodeCredentialsSpec {
    list.revoked.retain(|uid, _| RecordUid::parse(uid).is_ok());
    list.revoked_keys.retain(|key, entry| {
        let machine = entry.provider_id.as_deref().map(ProviderId::parse);
        KeyDigest::parse(key).is_ok()
            && NodeName::parse(&entry.node_name).is_ok()
            && machine.is_none_or(|machine| machine.is_ok())
    });
    select(list).0
}

/// Returns the part of the list that fits into an object, and the extent of the revocation.
pub(crate) fn select(
    wanted: RevokedNodeCredentialsSpec,
) -> (RevokedNodeCredentialsSpec, Revocation) {
    let RevokedNodeCredentialsSpec {
        revoked,
        revoked_keys,
        lowest_valid_generation,
    } = wanted;
    let records = revoked.len();
    let left_out =
        records.saturating_sub(MAX_REVOKED) + revoked_keys.len().saturating_sub(MAX_REVOKED_KEYS);
    let revoked = last_to_end(revoked, MAX_REVOKED, |revoked| &mut revoked.until);
    let mut revoked_keys = last_to_end(revoked_keys, MAX_REVOKED_KEYS, |key| &mut key.until);
    for key in revoked_keys.values_mut() {
        key.revoked_at = whole_seconds(key.revoked_at);
    }
    let revocation = Revocation {
        listed: revoked.len(),
        left_out,
    };
    let spec = RevokedNodeCredentialsSpec {
        revoked,
        lowest_valid_generation,
        revoked_keys,
    };
    (spec, revocation)
}

/// Returns up to `most` entries with the latest expiry times. Times are truncated to whole seconds, as in the written
/// list, so that the lists can be compared. The entries are not sorted, because a tenant determines their number.
fn last_to_end<T>(
    mut entries: BTreeMap<String, T>,
    most: usize,
    until: fn(&mut T) -> &mut SystemTime,
) -> BTreeMap<String, T> {
    for entry in entries.values_mut() {
        let until = until(entry);
        *until = whole_seconds(*until);
    }
    if entries.len() <= most {
        return entries;
    }
    let ended = |(name, mut entry): (String, T)| (Reverse(*until(&mut entry)), name, entry);
    let mut entries: Vec<_> = entries.into_iter().map(ended).collect();
    entries.select_nth_unstable_by(most, |(one, a, _), (other, b, _)| (one, a).cmp(&(other, b)));
    entries.truncate(most);
    let entries = entries.into_iter();
    entries.map(|(_, name, entry)| (name, entry)).collect()
}

/// Writes the list before the binding, so that the list is always complete when it is enforced.
async fn enforce(client: &Client, spec: RevokedNodeCredentialsSpec) -> Result<(), HardeningError> {
    let wanted = RevokedNodeCredentials::new(REVOKED_NODE_CREDENTIALS, spec);
    match put_list(client, &wanted).await {
        // An earlier version of the definition drops the fields that it does not contain.
        Ok(true) if read(client).await? != wanted.spec => {
            apply_definition(client, &workload_manifest()).await?;
            write_until_served(client, &wanted).boxed().await?;
        }
        Ok(_) => {}
        Err(error) => {
            ensure!(error.is_not_found(), error);
            let manifest = workload_manifest();
            put(client, &manifest, |_, _| true).boxed().await?;
            write_until_served(client, &wanted).boxed().await?;
        }
    }
    policy().apply(client).boxed().await?;
    Ok(())
}

/// Writes the list for a new definition. The API server serves a definition shortly after it has accepted it.
async fn write_until_served(
    client: &Client,
    wanted: &RevokedNodeCredentials,
) -> Result<(), HardeningError> {
    let end = Instant::now() + ESTABLISHING;
    loop {
        match put_list(client, wanted).await {
            Ok(_) if read(client).await? == wanted.spec => return Ok(()),
            Ok(_) if Instant::now() >= end => return Ok(()),
            Err(error) => ensure!(error.is_not_found() && Instant::now() < end, error),
            Ok(_) => {}
        }
        sleep(PAUSE).await;
    }
}

/// Empties the list, if the binding shows that the list was enforced.
async fn release(client: &Client) -> Result<(), HardeningError> {
    if !exists::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME).await? {
        return Ok(());
    }
    let spec = RevokedNodeCredentialsSpec::default();
    let nothing = RevokedNodeCredentials::new(REVOKED_NODE_CREDENTIALS, spec);
    if let Err(error) = put_list(client, &nothing).await {
        // If the definition is missing, the list does not exist either.
        ensure!(error.is_not_found(), error);
    }
    delete::<ValidatingAdmissionPolicyBinding>(client, POLICY_NAME, None).await
}

async fn put_list(
    client: &Client,
    wanted: &RevokedNodeCredentials,
) -> Result<bool, HardeningError> {
    put(client, wanted, |found, wanted| found.spec == wanted.spec)
        .boxed()
        .await
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
        // The conversion below succeeds for every UID that matches, so no expression fails.
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
    // A list from an earlier version has no lowest valid generation.
    let is_valid = "!has(params.spec) || ((!has(params.spec.lowestValidGeneration) \
        || variables.generation >= params.spec.lowestValidGeneration) \
        && (!has(params.spec.revoked) \
        || !(variables.record in params.spec.revoked) \
        || variables.generation >= params.spec.revoked[variables.record].lowestValidGeneration))";
    let message = "'the credential ' + request.userInfo.uid + ' of ' + request.userInfo.username \
        + ' is revoked'";
    let message = (
        is_valid.to_owned(),
        "this credential is revoked",
        message.to_owned(),
    );
    Policy {
        name: POLICY_NAME,
        // Matches all resources and their subresources.
        group: "*",
        resources: &["*/*"],
        operations: &["*"],
        failure_policy: "Ignore",
        params: Some((params, list)),
        conditions: conditions.map(owned).into(),
        variables: variables.map(owned).into(),
        validations: vec![message],
        audit: Vec::new(),
        actions: &["Deny"],
    }
}

#[cfg(test)]
mod tests {
    use node_attestation_core::crd::{RevokedGenerations, RevokedKey};

    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn uid(record: u32) -> String {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&record.to_be_bytes());
        RecordUid::new(bytes).to_string()
    }

    fn revoked(seconds: u64) -> RevokedGenerations {
        RevokedGenerations {
            lowest_valid: 3,
            until: at(seconds),
        }
    }

    fn key(seconds: u64) -> RevokedKey {
        RevokedKey {
            node_name: "n1".to_owned(),
            generation: 2,
            provider_id: Some("metal:///m1".to_owned()),
            revoked_at: at(0),
            until: at(seconds),
        }
    }

    fn list(
        revoked: impl IntoIterator<Item = (String, RevokedGenerations)>,
    ) -> RevokedNodeCredentialsSpec {
        RevokedNodeCredentialsSpec {
            revoked: revoked.into_iter().collect(),
            ..RevokedNodeCredentialsSpec::default()
        }
    }

    /// The list after one round: the existing entries, and the entries from the records.
    fn merged(
        listed: &RevokedNodeCredentialsSpec,
        records: &RevokedNodeCredentialsSpec,
        now: u64,
    ) -> RevokedNodeCredentialsSpec {
        Revocations::unread().merged(listed.clone(), records.clone(), |list| list, at(now))
    }

    #[test]
    fn an_entry_is_removed_when_it_expires() {
        let records = list([(uid(1), revoked(10)), (uid(2), revoked(20))]);

        for (now, listed) in [(0, 2), (9, 2), (10, 1), (19, 1), (20, 0)] {
            let (spec, revocation) = select(merged(&list([]), &records, now));
            assert_eq!(spec.revoked.len(), listed, "at {now}");
            assert_eq!(revocation.listed, listed, "at {now}");
            assert_eq!(revocation.left_out, 0, "at {now}");
        }
    }

    #[test]
    fn an_entry_without_a_record_is_kept_until_it_expires() {
        let of = |lowest_valid, seconds| RevokedGenerations {
            lowest_valid,
            until: at(seconds),
        };
        let listed = list([
            (uid(1), of(5, 10)),
            (uid(2), of(5, 20)),
            (uid(3), of(2, 20)),
        ]);
        let records = list([(uid(2), of(3, 30)), (uid(3), of(4, 10))]);

        let revoked = |now| select(merged(&listed, &records, now)).0.revoked;

        let first = BTreeMap::from([
            (uid(1), of(5, 10)),
            (uid(2), of(5, 30)),
            (uid(3), of(4, 20)),
        ]);
        assert_eq!(revoked(0), first);
        let left: Vec<_> = revoked(10).into_keys().collect();
        assert_eq!(left, [uid(2), uid(3)]);
        assert_eq!(revoked(30), BTreeMap::new());
    }

    #[test]
    fn a_revocation_list_over_its_limit_omits_the_first_to_expire() {
        let last = u32::try_from(MAX_REVOKED).unwrap() + 2;
        let mut full = list((1..=last).map(|n| (uid(n), revoked(1000 + u64::from(n)))));
        let keys = 0..=u64::try_from(MAX_REVOKED_KEYS).unwrap();
        let digest = |n: u64| KeyDigest::of(&n.to_be_bytes()).to_string();
        full.revoked_keys = keys.map(|n| (digest(n), key(1000 + n))).collect();

        let (spec, revocation) = select(full);

        assert_eq!(spec.revoked.len(), MAX_REVOKED);
        assert_eq!(spec.revoked_keys.len(), MAX_REVOKED_KEYS);
        assert!(!spec.revoked_keys.contains_key(&digest(0)));
        assert_eq!((revocation.listed, revocation.left_out), (MAX_REVOKED, 3));
        for (record, listed) in [(1, false), (2, false), (3, true), (last, true)] {
            let listed_now = spec.revoked.contains_key(&uid(record));
            assert_eq!(listed_now, listed, "{record}");
        }
    }

    #[test]
    fn revocation_entries_in_an_unknown_format_are_ignored() {
        let digest = KeyDigest::of(b"key").to_string();
        let mut listed = list([(uid(1), revoked(10))]);
        listed.revoked_keys = [(digest.clone(), key(10))].into();
        assert_eq!(ours(listed.clone()), listed);
        let changed = |change: fn(&mut RevokedKey)| {
            let mut key = key(10);
            change(&mut key);
            [(digest.clone(), key)].into()
        };

        let mut other = listed.clone();
        other.revoked.insert("x".repeat(1000), revoked(10));
        other.revoked_keys.insert("y".repeat(1000), key(10));
        assert_eq!(ours(other), listed);
        for key in [
            changed(|key| key.node_name = "n".repeat(1000)),
            changed(|key| key.provider_id = Some("m".repeat(1000))),
        ] {
            let mut other = listed.clone();
            other.revoked_keys = key;
            let read = ours(other);
            assert_eq!((read.revoked.len(), read.revoked_keys.len()), (1, 0));
        }
    }

    #[test]
    fn repeated_foreign_entries_do_not_accumulate() {
        let revocations = Revocations::unread();
        let records = list([(uid(0), revoked(5))]);
        let most = u32::try_from(MAX_REVOKED).unwrap();
        let keys = u32::try_from(MAX_REVOKED_KEYS).unwrap();

        for reading in 0..3 {
            let first = 1 + reading * most;
            let mut listed = list((first..first + most).map(|n| (uid(n), revoked(1000))));
            let digest = |n: u32| KeyDigest::of(&n.to_be_bytes()).to_string();
            let of_reading = first..first + keys;
            listed.revoked_keys = of_reading.map(|n| (digest(n), key(1000))).collect();
            let bounded = |list| select(list).0;
            revocations.read(revocations.merged(listed, records.clone(), bounded, at(0)));
        }

        // The entry for the record is in addition to the limited entries.
        assert_eq!(revocations.len(), (MAX_REVOKED + 1, MAX_REVOKED_KEYS));
    }

    #[test]
    fn a_revocation_list_is_unchanged_after_a_round_trip() {
        let later = Duration::from_millis(250);
        let mut written = list([(uid(1), revoked(10))]);
        written.lowest_valid_generation = 7;
        written.revoked.get_mut(&uid(1)).unwrap().until += later;
        let mut key = key(10);
        key.until += later;
        key.revoked_at += later;
        let digest = KeyDigest::of(b"key").to_string();
        written.revoked_keys = [(digest, key)].into();
        let (spec, _) = select(written);

        let text = serde_json::to_string(&spec).unwrap();

        assert_eq!(
            serde_json::from_str::<RevokedNodeCredentialsSpec>(&text).unwrap(),
            spec
        );
    }
}
