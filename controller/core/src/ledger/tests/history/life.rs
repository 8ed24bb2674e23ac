//! One cluster: the records in the management cluster, the list in the workload cluster, and the issued certificates.

use std::collections::{BTreeMap, BTreeSet};

use futures::executor::block_on;
use kubelet_attestation::names::NodeName;
use proptest::sample::Index;

use crate::crd::RevokedNodeCredentialsSpec;
use crate::identifiers::{CertificateUid, KeyDigest};
use crate::ledger::*;
use crate::refusal::Refusal;
use crate::testing::faulty_records::Fault;
use crate::testing::records::{
    LONGEST, World, at, claim, name, opened_at, policy, provider_id, renewal,
};

const MACHINES: [&str; 2] = ["m1", "m2"];
const NAMES: [&str; 2] = ["n1", "n2"];

/// An event in the life of a cluster. Numbers are positions in the lists above.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A machine claims a name with a new key.
    Join {
        machine: usize,
        name: usize,
    },
    /// A machine claims a name with the key of a certificate.
    JoinWithKey {
        machine: usize,
        name: usize,
        key: Index,
    },
    /// A certificate is used for a renewal.
    Renew(Index),
    Revoke(usize),
    Reset(usize),
    ResetRevoked(usize),
    Retire(usize),
    /// An operator deletes a record from the management cluster.
    Forget(usize),
    /// All records are lost.
    ForgetAll,
    /// Both clusters are backed up.
    Backup,
    RestoreManagement,
    /// If another controller becomes the leader before the list is written again, the operator raises the floor
    /// afterwards.
    RestoreWorkload {
        restarted: bool,
    },
    /// Another replica becomes the leader.
    Restart,
    /// After the restore, the operator raises the floor.
    RestoreBoth,
    /// `clusterctl move` runs, after which another controller has objects without a status.
    Move,
    RaiseFloor,
    Hour,
}

/// A rule that is missing, so that an invariant must be violated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    GenerationIsNext,
    ListOfRecordsOnly,
    ResetBeforeRevocation,
    NoFloorAfterRestore,
    MachinesForgotten,
    ReleaseForgetsKey,
    RecoveryIgnoresList,
}

#[derive(Debug, Clone)]
struct Issued {
    uid: CertificateUid,
    name: &'static str,
    machine: &'static str,
    key: u8,
    end: u32,
}

#[derive(Debug, Clone, Default)]
struct Backup {
    records: Vec<Record>,
    decisions: RevocationDecisions,
    list: RevokedNodeCredentialsSpec,
}

pub(super) struct Life {
    world: World,
    flaw: Option<Flaw>,
    hour: u32,
    keys: u8,
    decisions: RevocationDecisions,
    /// The list in the workload cluster.
    list: RevokedNodeCredentialsSpec,
    backup: Backup,
    issued: Vec<Issued>,
    /// The operators' revocations, each with the hour at which the revoked certificate expires.
    revoked: BTreeMap<CertificateUid, u32>,
    revoked_keys: BTreeMap<u8, u32>,
    revoked_machines: BTreeMap<&'static str, u32>,
}

impl Life {
    pub(super) fn new(flaw: Option<Flaw>) -> Self {
        Self {
            world: World::with(LedgerPolicy {
                adoption: Adoption::Recover,
                ..policy()
            }),
            flaw,
            hour: 0,
            keys: 0,
            decisions: RevocationDecisions::default(),
            list: RevokedNodeCredentialsSpec::default(),
            backup: Backup::default(),
            issued: Vec::new(),
            revoked: BTreeMap::new(),
            revoked_keys: BTreeMap::new(),
            revoked_machines: BTreeMap::new(),
        }
    }

    /// Applies the event. The error is the invariant that was violated.
    pub(super) fn take(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Join { machine, name } => {
                self.keys += 1;
                self.join(MACHINES[*machine], NAMES[*name], self.keys)?;
            }
            Event::JoinWithKey { machine, name, key } if !self.issued.is_empty() => {
                let key = key.get(&self.issued).key;
                self.join(MACHINES[*machine], NAMES[*name], key)?;
            }
            Event::Renew(index) if !self.issued.is_empty() => {
                let certificate = index.get(&self.issued).clone();
                if certificate.end > self.hour {
                    self.renew(&certificate)?;
                }
            }
            Event::JoinWithKey { .. } | Event::Renew(_) => {}
            Event::Revoke(name) => self.revoke(NAMES[*name]),
            Event::Reset(name) => self.reset(NAMES[*name]),
            Event::ResetRevoked(name) => self.reset_revoked(NAMES[*name]),
            Event::Retire(name) => self.change(NAMES[*name], |record, hour| {
                let retired = record.retired(TombstoneReason::MachineGone, LONGEST, at(hour));
                *record = if record.is_live() {
                    retired
                } else {
                    record.clone()
                };
            }),
            // The next claim to the name is in a different second.
            Event::Forget(name) => {
                self.forget(NAMES[*name]);
                self.hour += 1;
            }
            Event::ForgetAll => {
                for node in NAMES {
                    self.forget(node);
                }
                self.hour += 1;
            }
            Event::Backup => {
                self.backup = Backup {
                    records: self.records(),
                    decisions: self.decisions.clone(),
                    list: self.list.clone(),
                };
            }
            Event::RestoreManagement => self.restore(),
            Event::RestoreWorkload { restarted } => {
                self.list = self.backup.list.clone();
                if *restarted {
                    self.restart();
                    self.lose_list();
                }
            }
            Event::Restart => self.restart(),
            Event::RestoreBoth => {
                self.list = self.backup.list.clone();
                self.restore();
                self.lose_list();
            }
            Event::Move => {
                for record in self.records() {
                    self.change_all(&record.node_name, |record, _| {
                        record.renewed_until = None;
                        record.renewed_boot = None;
                    });
                }
                self.restart();
            }
            Event::RaiseFloor => self.raise_floor(),
            Event::Hour => self.hour += 1,
        }
        self.publish();
        self.check()
    }

    fn records(&self) -> Vec<Record> {
        let all = block_on(self.world.records.all()).unwrap();
        all.iter().map(|stored| stored.record.clone()).collect()
    }

    fn record(&self, node: &str) -> Option<Record> {
        let stored = block_on(self.world.records.read(&name(node))).unwrap();
        stored.map(|stored| stored.record)
    }

    fn change(&self, node: &str, change: impl FnOnce(&mut Record, u32)) {
        self.change_all(&name(node), change);
    }

    fn change_all(&self, node: &NodeName, change: impl FnOnce(&mut Record, u32)) {
        if let Some(stored) = block_on(self.world.records.read(node)).unwrap() {
            let mut record = stored.record;
            change(&mut record, self.hour);
            block_on(self.world.records.replace(&record, &stored.version)).unwrap();
        }
    }

    fn forget(&self, node: &str) {
        if let Some(stored) = block_on(self.world.records.read(&name(node))).unwrap() {
            block_on(self.world.records.delete(&name(node), &stored.version)).unwrap();
        }
    }

    /// The ledger that decides on a claim to this name.
    fn ledger(&self, node: &str) -> RecordLedger {
        let ledger = self.world.ledger();
        let is_reset = self.record(node).is_some_and(|record| record.is_reset());
        match self.flaw {
            Some(Flaw::ResetBeforeRevocation) if is_reset => {
                ledger.with_revocations(Revocations::default())
            }
            Some(Flaw::GenerationIsNext) => self
                .world
                .ledger_over(self.world.faulty(Fault::NextGeneration)),
            _ => ledger,
        }
    }

    fn join(&mut self, machine: &'static str, node: &'static str, key: u8) -> Result<(), String> {
        let claim = claim(machine, node, key, self.hour);
        let granted = block_on(self.ledger(node).claim(&claim, at(self.hour)));
        let Ok(grant) = granted else {
            return Ok(());
        };
        let is_valid = |end: Option<&u32>| end.is_some_and(|end| *end > self.hour);
        if is_valid(self.revoked_machines.get(machine)) {
            return Err(format!("a revoked machine has {}", grant.uid));
        }
        if is_valid(self.revoked_keys.get(&key)) {
            return Err(format!("a revoked key has {}", grant.uid));
        }
        let same = self.issued.iter().filter(|one| one.uid == grant.uid);
        if same.clone().any(|one| one.key != key) {
            return Err(format!("two keys have {}", grant.uid));
        }
        self.issued.push(Issued {
            uid: grant.uid,
            name: node,
            machine,
            key,
            end: self.hour + 10,
        });
        Ok(())
    }

    /// Renews the certificate, or recovers its record with a new key.
    fn renew(&mut self, certificate: &Issued) -> Result<(), String> {
        self.keys += 1;
        let Ok(grant) = self.renews(certificate, self.keys) else {
            return Ok(());
        };
        let is_opened = grant.uid != certificate.uid;
        let revoked = self.revoked_machines.get(certificate.machine);
        if is_opened && revoked.is_some_and(|end| *end > self.hour) {
            return Err(format!("a revoked machine recovers {}", grant.uid));
        }
        // A renewal within one generation does not change the key in the record.
        let opened = self.issued.iter().find(|one| one.uid == grant.uid);
        if opened.is_some_and(|one| one.machine != certificate.machine) {
            return Err(format!("two machines have {}", grant.uid));
        }
        let key = opened.map_or(self.keys, |one| one.key);
        self.issued.push(Issued {
            uid: grant.uid,
            key,
            end: self.hour + 10,
            ..*certificate
        });
        Ok(())
    }

    fn renews(&self, certificate: &Issued, key: u8) -> Result<Grant, Refusal> {
        let renewal = Renewal {
            node_name: name(certificate.name),
            uid: certificate.uid,
            key: KeyDigest::of(&[key]),
            ..renewal(certificate.machine, 1, self.hour)
        };
        let ledger = match self.flaw {
            Some(Flaw::RecoveryIgnoresList) => {
                let ledger = self.world.ledger();
                ledger.with_revocations(Revocations::default())
            }
            _ => self.world.ledger(),
        };
        block_on(ledger.renew(&renewal, at(self.hour)))
    }

    fn revoke(&mut self, node: &str) {
        let Some(record) = self.record(node).filter(Record::is_live) else {
            return;
        };
        self.change(node, |record, hour| {
            record.reset = None;
            record.revoked = Some(Revoked {
                generation: record.generation,
                at: at(hour),
            });
        });
        self.decisions.take_back(&record.holder.provider_id);
        self.world.revocations.decide(self.decisions.clone());
        let uid = record.certificate_uid();
        for one in self.issued.iter().filter(|one| one.uid == uid) {
            let later = |end: &mut u32| *end = one.end.max(*end);
            later(self.revoked.entry(uid).or_default());
            later(self.revoked_keys.entry(one.key).or_default());
            later(self.revoked_machines.entry(one.machine).or_default());
        }
        // The time advances, so that a later release gets a later time.
        self.publish();
        self.hour += 1;
    }

    fn reset(&self, node: &str) {
        self.change(node, |record, _| {
            if !record.is_revoked() {
                record.reset = Some(record.generation);
            }
        });
    }

    fn reset_revoked(&mut self, node: &str) {
        let Some(record) = self.record(node) else {
            return;
        };
        let machine = record.holder.provider_id;
        self.decisions.release(machine.clone(), at(self.hour));
        self.world.revocations.decide(self.decisions.clone());
        self.revoked_machines
            .retain(|name, _| provider_id(name) != machine);
        self.change(node, |record, _| record.reset = Some(record.generation));
        // Two operators do not act within the same second.
        self.hour += 1;
    }

    fn restore(&mut self) {
        for record in self.records() {
            self.forget(record.node_name.as_str());
        }
        for record in &self.backup.records {
            block_on(self.world.records.create(record)).unwrap();
        }
        self.decisions = self.backup.decisions.clone();
        self.hour += 1;
        self.restart();
    }

    /// Starts a new controller process, which reads the list before it decides.
    fn restart(&self) {
        self.world.revocations.forget();
        self.world.revocations.decide(self.decisions.clone());
    }

    /// Replaces the list with a list that is as old as the backup.
    fn lose_list(&mut self) {
        if self.flaw != Some(Flaw::NoFloorAfterRestore) {
            self.raise_floor();
        }
        // The revoked keys and machines in the list are lost, but none of their certificates is valid.
        self.revoked_keys.clear();
        self.revoked_machines.clear();
    }

    fn raise_floor(&mut self) {
        self.hour += 1;
        self.decisions.floor = opened_at(self.hour);
        self.world.revocations.decide(self.decisions.clone());
        for one in &self.issued {
            let end = self.revoked.entry(one.uid).or_default();
            *end = one.end.max(*end);
        }
    }

    fn publish(&mut self) {
        let records = self.records();
        let now = at(self.hour);
        let of_records = RevokedNodeCredentialsSpec::of_records(&records, LONGEST, now);
        let revocations = &self.world.revocations;
        if self.flaw == Some(Flaw::ListOfRecordsOnly) {
            revocations.forget();
            self.list = RevokedNodeCredentialsSpec::default();
        }
        self.list =
            revocations.merged(std::mem::take(&mut self.list), of_records, |list| list, now);
        let keys = &mut self.list.revoked_keys;
        match self.flaw {
            Some(Flaw::MachinesForgotten) => keys.clear(),
            Some(Flaw::ReleaseForgetsKey) => keys.retain(|_, key| key.provider_id.is_some()),
            _ => {}
        }
        revocations.read(self.list.clone());
    }

    fn check(&self) -> Result<(), String> {
        let expired: BTreeSet<_> = self
            .revoked
            .iter()
            .filter(|(_, end)| **end <= self.hour)
            .map(|(uid, _)| *uid)
            .collect();
        for one in &self.issued {
            if !self.revoked.contains_key(&one.uid) || expired.contains(&one.uid) {
                continue;
            }
            let uid = one.uid;
            if !self.list.refuses(uid) {
                return Err(format!("a revoked certificate writes: {uid}"));
            }
            if self.renews(one, one.key).is_ok() {
                return Err(format!("a revoked certificate is renewed: {uid}"));
            }
            let holder = self.world.ledger();
            if block_on(holder.holder(&name(one.name), Some(uid))).is_ok() {
                return Err(format!("a revoked certificate gets a serving one: {uid}"));
            }
        }
        Ok(())
    }
}
