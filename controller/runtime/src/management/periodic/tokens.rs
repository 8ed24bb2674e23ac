//! The bootstrap tokens of a workload cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::BootstrapTokens;
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::ledger::{Record, Stored};
use node_attestation_core::pace::Pace;
use node_attestation_core::scope::EnforcementState;
use tokio::time::timeout;

use super::{Health, MAX_NAMED, PART_DEADLINE, PartError, PeriodicTasks, part};
use crate::capi::{CapiInventory, TokenMachine};
use crate::client::{ClusterAccess, ServerTime};
use crate::clock::{elapsed, now};
use crate::hardening::tokens::Tokens;
use crate::management::cluster_status::LockedOut;

impl PeriodicTasks {
    /// Extends the tokens of existing machines, and expires the tokens of deleted machines. If every attestation
    /// provider requires evidence, also extends the tokens of pools.
    ///
    /// While attestation is not enforced, no token is extended, because a token is sufficient to join as any node.
    /// After enforcement ends, the extended tokens of machines that have joined expire.
    pub(super) async fn keep_tokens(&mut self, health: &mut Health) {
        match self.spec.bootstrap_tokens {
            BootstrapTokens::Manage => {}
            BootstrapTokens::Ignore => {
                health.locked_out = Some(LockedOut::NotChecked);
                return;
            }
        }
        let extends = match self.context.enforcement.state() {
            EnforcementState::On if self.is_policy_applied => true,
            EnforcementState::Off => false,
            EnforcementState::On | EnforcementState::Unknown => return,
        };
        // The reads wait for their turn without a deadline, and the revocations in the next round wait for the reads.
        // Until the Machines are known, no token is expired.
        let machines = Box::pin(self.inventory.machine_tokens());
        let Ok(Some(machines)) = timeout(PART_DEADLINE, machines).await else {
            return;
        };
        let extends_pools = extends && self.context.verifiers.need_evidence();
        let of_pools = if extends_pools || !machines.joining.are_all {
            let of_pools = Box::pin(self.inventory.pool_tokens());
            timeout(PART_DEADLINE, of_pools).await.ok().flatten()
        } else {
            None
        };
        let owned = of_pools.iter().flat_map(|pools| &pools.tokens);
        let owned = owned
            .chain(&machines.deleting)
            .chain(&machines.joined.tokens);
        let owned = owned.chain(&machines.joining.tokens);
        let mut are_owners_known = machines.joining.are_all;
        if extends {
            are_owners_known &= machines.joined.are_all;
        }
        if extends_pools {
            are_owners_known &= of_pools.as_ref().is_some_and(|pools| pools.are_all);
        }
        // An unreadable KubeadmConfig delays only the expiry of tokens without a known owner.
        self.tokens.set_owned(owned, are_owners_known);
        let mut wanted = machines.joining.tokens;
        if extends {
            wanted.extend(machines.joined.tokens);
        }
        // While the tokens of all pools are unknown, the tokens of pools must not count as unneeded.
        let mut are_pools_known = true;
        if extends_pools {
            are_pools_known = of_pools.is_some();
            if let Some(pools) = of_pools {
                wanted.extend(pools.tokens.iter().cloned());
                self.tokens.set_of_pools(pools.tokens);
            }
        }
        // With a slow local clock, tokens would expire before they are extended. A tenant's API server can report any time.
        let (now, client) = (self.server_time.now_or(now()), self.access.client());
        let kept = if extends && are_pools_known {
            part(self.tokens.keep(client, &wanted, now, elapsed())).await
        } else if extends {
            part(self.tokens.extend(client, &wanted, now, elapsed())).await
        } else {
            part(self.tokens.release(client, &wanted, now, elapsed())).await
        };
        if let Some(kept) = health.note("bootstrap tokens", kept) {
            for token in kept.extended {
                tracing::debug!(
                    token = token.as_str(),
                    "extended the validity of the bootstrap token"
                );
            }
            for token in kept.ended {
                tracing::debug!(token = token.as_str(), "made the bootstrap token expire");
            }
        }
        if are_pools_known {
            let former = self.tokens.find_former(client, &wanted, now, elapsed());
            health.note(
                "bootstrap tokens that were extended before",
                part(former).await,
            );
        }
        health.locked_out = self.locked_out(now).await;
    }

    /// The Machines whose nodes cannot rejoin. `None` if they are unknown.
    async fn locked_out(&self, now: SystemTime) -> Option<LockedOut> {
        match self.context.enforcement.state() {
            EnforcementState::Unknown => return None,
            EnforcementState::Off => return Some(LockedOut::NotChecked),
            EnforcementState::On => {}
        }
        let gone = self.tokens.gone();
        let mut named = if gone.is_empty() {
            Vec::new()
        } else {
            let records = self.records().await.ok()?;
            let machines = self.inventory.token_machines().await?;
            locked_out(machines, &gone, &records, now).await
        };
        let count = named.len();
        named.truncate(MAX_NAMED);
        Some(LockedOut::Machines { named, count })
    }
}

/// The extended tokens of a cluster whose `KubeletAuthentication` was deleted.
#[derive(Debug)]
pub(in crate::management) struct TokenRelease {
    tokens: Tokens,
    inventory: CapiInventory,
    /// The time on the management cluster's API server.
    server_time: ServerTime,
}

impl TokenRelease {
    /// The memory for the tokens is charged to this namespace.
    pub(in crate::management) fn new(
        inventory: CapiInventory,
        namespace: &str,
        server_time: ServerTime,
    ) -> Self {
        // Nothing needs the tokens later, so that they are not kept for a grace period.
        let tokens = Tokens::new(Duration::ZERO).of_namespace(namespace);
        Self {
            tokens,
            inventory,
            server_time,
        }
    }

    /// Expires the extended tokens. Cluster API keeps the tokens of Machines without a Node valid, so that these tokens
    /// are not changed. After an error, the next call continues.
    pub(in crate::management) async fn end(
        &mut self,
        access: &ClusterAccess,
    ) -> Result<(), PartError> {
        // The reads wait for their turn without a deadline.
        let machines = Box::pin(self.inventory.machine_tokens());
        let machines = timeout(PART_DEADLINE, machines).await;
        let machines = machines.map_err(|_| PartError::Late(PART_DEADLINE))?;
        let Some(machines) = machines else {
            let why = "the Machines of the Cluster cannot be read";
            return Err(PartError::Call(why.to_owned()));
        };
        let of_pools = if machines.joining.are_all {
            None
        } else {
            let of_pools = Box::pin(self.inventory.pool_tokens());
            timeout(PART_DEADLINE, of_pools).await.ok().flatten()
        };
        let (now, client) = (self.server_time.now_or(now()), access.client());
        let joining = machines.joining.tokens;
        let former = self.tokens.find_former(client, &joining, now, elapsed());
        part(former).await?;
        let owned = of_pools.iter().flat_map(|pools| &pools.tokens);
        let owned = owned.chain(&machines.deleting);
        let owned = owned.chain(&machines.joined.tokens);
        self.tokens.set_owned(owned, machines.joining.are_all);
        let ended = self.tokens.release(client, &joining, now, elapsed());
        for token in part(ended).await?.ended {
            tracing::debug!(token = token.as_str(), "expired the bootstrap token");
        }
        // The label of an expired token is removed, so that another list contains the rest.
        if self.tokens.lists_again() {
            let why = "the list of extended tokens was truncated";
            return Err(PartError::Call(why.to_owned()));
        }
        match self.tokens.left(&joining) {
            0 => Ok(()),
            left => Err(PartError::Call(format!(
                "{left} tokens are left: the API server rejected the change, or the KubeadmConfig of a Machine \
                 without a Node cannot be read"
            ))),
        }
    }
}

/// The names of the machines whose token is in `gone`, and whose nodes need a token. A node needs a token if it has not
/// joined, its certificate has expired, or its record was reset. Excludes nodes whose certificates were revoked,
/// because an operator must act first.
async fn locked_out(
    machines: Vec<TokenMachine>,
    gone: &BTreeSet<&TokenId>,
    records: &[Arc<Stored>],
    now: SystemTime,
) -> Vec<String> {
    let mut pace = Pace::default();
    let mut live: BTreeMap<&ProviderId, &Record> = BTreeMap::new();
    for stored in records {
        let record = &stored.record;
        if record.is_live() {
            live.insert(&record.holder.provider_id, record);
        }
        pace.step().await;
    }
    let needs_token = |machine: &TokenMachine| {
        let id = machine.provider_id.as_ref();
        match id.and_then(|id| live.get(id)) {
            Some(record) if record.is_reset() => true,
            Some(record) => !record.is_revoked() && record.known_end() < now,
            None => !machine.has_node,
        }
    };
    let machines = machines.into_iter();
    let locked_out =
        machines.filter(|machine| gone.contains(&machine.token) && needs_token(machine));
    let mut names: Vec<String> = locked_out.map(|machine| machine.name).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::future::FutureExt as _;
    use http_body_util::Full;
    use hyper::body::Bytes;
    use hyper::{Method, Response};
    use k8s_openapi::ByteString;
    use node_attestation_core::identifiers::RecordUid;
    use node_attestation_core::ledger::{Revoked, Tombstone, TombstoneReason, Version};
    use node_attestation_core::testing::records::{at, claim, provider_id};
    use serde_json::json;

    use super::*;
    use crate::capi::{ObjectKey, Objects, objects_with_an_unreadable_config, objects_with_tokens};
    use crate::memory::Share;

    /// The locked-out machines at hour 20, if there is one machine. Its token has expired. The certificate in its
    /// record expires at hour 10, unless `change` sets a different time.
    fn found(change: impl Fn(&mut Record), of_machine: impl Fn(&mut TokenMachine)) -> Vec<String> {
        let token = TokenId::parse("abcdef").unwrap();
        let mut machine = TokenMachine {
            name: "m1".to_owned(),
            token: token.clone(),
            provider_id: Some(provider_id("m1")),
            has_node: true,
        };
        of_machine(&mut machine);
        let mut record = Record::first(
            &claim("m1", "n1", 1, 0),
            RecordUid::new([7; 16]),
            None,
            at(0),
        );
        change(&mut record);
        let stored = Stored {
            record,
            version: Version::new("1"),
        };
        let records = [Arc::new(stored)];
        let found = locked_out(vec![machine], &[&token].into(), &records, at(20)).now_or_never();
        found.expect("one record is less than a page")
    }

    fn renewed(record: &mut Record) {
        record.renewed_until = Some(at(30));
    }

    #[test]
    fn a_machine_without_token_is_locked_out_if_expired_or_reset() {
        assert_eq!(found(|_| {}, |_| {}), ["m1"]);
        assert!(found(renewed, |_| {}).is_empty());
        let reset = |record: &mut Record| {
            renewed(record);
            record.reset = Some(1);
        };
        assert_eq!(found(reset, |_| {}), ["m1"]);
        let revoked = |record: &mut Record| {
            record.revoked = Some(Revoked {
                generation: 1,
                at: at(1),
            });
        };
        assert!(found(revoked, |_| {}).is_empty());
    }

    #[test]
    fn a_machine_that_never_joined_is_locked_out_without_a_token() {
        let other = |machine: &mut TokenMachine| machine.provider_id = Some(provider_id("m2"));
        let unnamed = |machine: &mut TokenMachine| machine.provider_id = None;
        let no_records: [fn(&mut TokenMachine); 2] = [other, unnamed];
        for no_record in no_records {
            // The Node joined without a record, with a certificate from a built-in Kubernetes signer.
            assert!(found(|_| {}, no_record).is_empty());
            let without_node = |machine: &mut TokenMachine| {
                no_record(machine);
                machine.has_node = false;
            };
            assert_eq!(found(|_| {}, without_node), ["m1"]);
        }
        let retired = |record: &mut Record| {
            renewed(record);
            record.tombstone = Some(Tombstone {
                since: at(1),
                reason: TombstoneReason::MachineGone,
                until: at(40),
            });
        };
        assert_eq!(found(retired, |machine| machine.has_node = false), ["m1"]);
    }

    #[test]
    fn a_machine_with_a_live_token_is_not_locked_out() {
        let live = |machine: &mut TokenMachine| machine.token = TokenId::parse("ghijkl").unwrap();
        assert!(found(|_| {}, live).is_empty());
    }

    /// The extended tokens of a Machine that has joined, of a Machine without a Node, and of a pool.
    const EXTENDED: [&str; 3] = ["joined", "joins1", "pooled"];

    /// An API server with the tokens in [`EXTENDED`]. The server rejects the first change to the token `refused`, and records
    /// the tokens that were changed.
    fn with_extended(
        refused: Option<&'static str>,
        changed: &Arc<Mutex<Vec<String>>>,
    ) -> ClusterAccess {
        with_tokens(EXTENDED.map(str::to_owned).to_vec(), refused, changed)
    }

    /// Like [`with_extended`], with these extended tokens.
    fn with_tokens(
        tokens: Vec<String>,
        refused: Option<&'static str>,
        changed: &Arc<Mutex<Vec<String>>>,
    ) -> ClusterAccess {
        let (changed, refused) = (changed.clone(), Mutex::new(refused));
        let refused = Arc::new(refused);
        ClusterAccess::in_memory(move |request| {
            let path = request.uri().path().to_owned();
            let (mut status, mut answer) = (200_u16, json!({"metadata": {}}));
            match path.rsplit_once("/bootstrap-token-") {
                None => {
                    let item = |token: &String| json!({"metadata": {"name": format!("bootstrap-token-{token}")}});
                    let changed = changed.lock().unwrap();
                    let left = tokens.iter().filter(|token| !changed.contains(token));
                    answer["items"] = left.map(item).collect();
                }
                Some((_, token)) if request.method() == Method::PATCH => {
                    let mut refused = refused.lock().unwrap();
                    if *refused == Some(token) {
                        *refused = None;
                        status = 409;
                        answer = json!({
                            "kind": "Status", "apiVersion": "v1", "metadata": {}, "code": 409,
                            "reason": "Conflict",
                        });
                    } else {
                        changed.lock().unwrap().push(token.to_owned());
                    }
                }
                Some(_) => {
                    let end = now() + Duration::from_hours(1);
                    let end = node_attestation_core::time::text(end);
                    answer = json!({
                        "metadata": {
                            "resourceVersion": "7",
                            "labels": {"attestation.cluster.x-k8s.io/extended": "true"},
                        },
                        "type": "bootstrap.kubernetes.io/token",
                        "data": {"expiration": ByteString(end.into_bytes())},
                    });
                }
            }
            let body = Full::new(Bytes::from(answer.to_string()));
            let answer = Response::builder().status(status).body(body).unwrap();
            async move { answer }
        })
    }

    fn release_of(objects: Objects) -> TokenRelease {
        let inventory = CapiInventory::new(objects, ObjectKey::new("tenant-a", "prod-1"));
        TokenRelease::new(inventory, "tenant-a", ServerTime::default())
    }

    #[tokio::test]
    async fn tokens_of_joined_machines_and_pools_end_with_the_object() {
        let changed = Arc::default();
        let access = with_extended(None, &changed);
        let mut release = release_of(objects_with_tokens());

        for _ in 0..2 {
            Box::pin(release.end(&access)).await.unwrap();

            assert_eq!(*changed.lock().unwrap(), ["joined", "pooled"], "once");
        }
    }

    #[tokio::test]
    async fn the_api_servers_clock_shows_which_tokens_have_already_expired() {
        let changed = Arc::default();
        let access = with_extended(None, &changed);
        let mut release = release_of(objects_with_tokens());
        release.server_time = ServerTime::at(now() + Duration::from_hours(2));

        Box::pin(release.end(&access)).await.unwrap();

        assert_eq!(*changed.lock().unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn the_end_of_a_token_that_the_api_server_rejects_is_retried() {
        let changed = Arc::default();
        let access = with_extended(Some("joined"), &changed);
        let mut release = release_of(objects_with_tokens());

        let error = Box::pin(release.end(&access)).await.unwrap_err();

        assert!(
            error.to_string().starts_with("1 tokens are left"),
            "{error}"
        );
        assert_eq!(*changed.lock().unwrap(), ["pooled"]);
        Box::pin(release.end(&access)).await.unwrap();
        assert_eq!(*changed.lock().unwrap(), ["pooled", "joined"]);
    }

    #[tokio::test]
    async fn a_release_with_a_truncated_list_of_tokens_is_not_complete() {
        let changed = Arc::default();
        let tokens = (0..130).map(|number| format!("a{number:05}"));
        let access = with_tokens(tokens.collect(), None, &changed);
        let mut release = release_of(objects_with_tokens());
        // This memory is sufficient for 128 tokens.
        let memory = Share::alone(16 * 1024);
        release.tokens = Tokens::new(Duration::ZERO).within(&memory);

        let error = Box::pin(release.end(&access)).await.unwrap_err();

        assert!(error.to_string().contains("truncated"), "{error}");
        assert_eq!(changed.lock().unwrap().len(), 128);
        Box::pin(release.end(&access)).await.unwrap();
        assert_eq!(changed.lock().unwrap().len(), 130);
    }

    #[tokio::test]
    async fn a_token_that_might_belong_to_a_joining_machine_does_not_end() {
        let changed = Arc::default();
        let access = with_extended(None, &changed);
        let mut release = release_of(objects_with_an_unreadable_config());

        let error = Box::pin(release.end(&access)).await.unwrap_err();

        let words = error.to_string();
        assert!(words.starts_with("1 tokens are left: "), "{words}");
        assert_eq!(*changed.lock().unwrap(), ["joined"]);
    }

    #[tokio::test]
    async fn no_token_ends_while_the_machines_cannot_be_read() {
        let changed = Arc::default();
        let access = with_extended(None, &changed);
        let inventory =
            CapiInventory::new(objects_with_tokens(), ObjectKey::new("tenant-a", "prod-2"));
        let mut release = TokenRelease::new(inventory, "tenant-a", ServerTime::default());

        let error = Box::pin(release.end(&access)).await.unwrap_err();

        let expected = "the Machines of the Cluster cannot be read";
        assert_eq!(error.to_string(), expected);
        assert_eq!(*changed.lock().unwrap(), [""; 0]);
    }
}
