//! The bootstrap tokens of a workload cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::SystemTime;

use kubelet_attestation::names::ProviderId;
use node_attestation_core::crd::BootstrapTokens;
use node_attestation_core::identifiers::TokenId;
use node_attestation_core::ledger::{Record, Stored};
use node_attestation_core::pace::Pace;
use node_attestation_core::scope::EnforcementState;
use tokio::time::timeout;

use super::{Health, MAX_NAMED, PART_DEADLINE, PeriodicTasks, part};
use crate::capi::TokenMachine;
use crate::clock::{elapsed, now};
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
        let (now, client) = (now(), self.access.client());
        let kept = if extends && are_pools_known {
            part(self.tokens.keep(client, &wanted, now, elapsed())).await
        } else if extends {
            part(self.tokens.extend(client, &wanted, now, elapsed())).await
        } else {
            part(self.tokens.release(client, &wanted, now, elapsed())).await
        };
        if let Some(kept) = health.note("bootstrap tokens", kept) {
            for token in kept.extended {
                tracing::debug!(token = token.as_str(), "the bootstrap token was extended");
            }
            for token in kept.ended {
                tracing::debug!(token = token.as_str(), "expired the bootstrap token");
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
    use futures::future::FutureExt as _;
    use node_attestation_core::identifiers::RecordUid;
    use node_attestation_core::ledger::{Revoked, Tombstone, TombstoneReason, Version};
    use node_attestation_core::testing::records::{at, claim, provider_id};

    use super::*;

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
}
