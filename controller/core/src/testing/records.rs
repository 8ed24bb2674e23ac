//! A cluster with machines `m1` to `m3` and names `n1` to `n3`, whose clock counts hours.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures::executor::block_on;
use kubelet_attestation::names::{NodeName, Provider, ProviderId};

use crate::identifiers::{CertificateUid, KeyDigest, RecordUid};
use crate::inventory::{Machine, MachineState, StaticInventory};
use crate::ledger::{
    Absences, Claim, Claimant, Grant, LedgerPolicy, MemoryRecords, Record, RecordLedger, Records,
    Renewal, RequestRef, Revocations, Revoked, Stored,
};
use crate::nodes::{Node, Nodes as _};
use crate::refusal::{Denial, Refusal};
use crate::scope::Enforcement;
use crate::testing::faulty_records::{Fault, FaultyRecords};
use crate::testing::ledger::Uids;
use crate::testing::nodes::MemoryNodes;
use crate::time::unix_seconds;
use crate::verifier::{Assurance, AttestedIdentity, Identity};

pub const HOUR: Duration = Duration::from_hours(1);

/// The maximum lifetime in the policy. Every certificate is valid for ten hours.
pub const LONGEST: Duration = Duration::from_hours(20);

pub fn at(hours: u32) -> SystemTime {
    UNIX_EPOCH + 500_000 * HOUR + hours * HOUR
}

/// The generation that is opened at this hour, unless it is the first generation.
pub fn opened_at(hours: u32) -> u64 {
    unix_seconds(at(hours))
}

pub fn name(name: &str) -> NodeName {
    NodeName::parse(name).unwrap()
}

pub fn provider_id(machine: &str) -> ProviderId {
    ProviderId::parse(&format!("metal:///{machine}")).unwrap()
}

pub fn policy() -> LedgerPolicy {
    LedgerPolicy::new(LONGEST)
}

pub fn machine(name: &str, state: MachineState) -> Machine {
    let mut machine = Machine::new(name);
    machine.provider_id = Some(provider_id(name));
    machine.state = state;
    machine
}

/// An attested claim with a bootstrap token, for a certificate that is valid for ten hours.
pub fn claim(machine: &str, node: &str, key: u8, hour: u32) -> Claim {
    let identity = Identity::of(provider_id(machine));
    Claim {
        node_name: name(node),
        claimant: Claimant::Token,
        assurance: Assurance::Attested(AttestedIdentity::vouched(identity)),
        provider: Provider::NULL,
        machine_name: Some(machine.to_owned()),
        key: KeyDigest::of(&[key]),
        request: RequestRef {
            name: format!("csr-{key}"),
            uid: format!("uid-{key}"),
        },
        asked: at(hour),
        not_after: at(hour + 10),
    }
}

/// The value of each byte in the first UID.
const FIRST: u8 = 7;

/// The renewal of this generation of `n1`, for a certificate that is valid for ten hours.
pub fn renewal(machine: &str, generation: u64, hour: u32) -> Renewal {
    Renewal {
        node_name: name("n1"),
        identity: AttestedIdentity::vouched(Identity::of(provider_id(machine))),
        uid: CertificateUid {
            record: RecordUid::new([FIRST; 16]),
            generation,
        },
        asked: at(hour),
        not_after: at(hour + 10),
        provider: Provider::NULL,
        machine_name: Some(machine.to_owned()),
        key: KeyDigest::of(format!("renewal {hour}").as_bytes()),
        request: RequestRef::default(),
    }
}

pub fn insecure(claim: Claim) -> Claim {
    Claim {
        assurance: Assurance::None(claim.assurance.identity().clone()),
        provider: Provider::INSECURE,
        ..claim
    }
}

pub fn by_node(claim: Claim) -> Claim {
    Claim {
        claimant: Claimant::Node,
        ..claim
    }
}

#[derive(Debug)]
pub struct World {
    pub records: Arc<MemoryRecords>,
    pub nodes: Arc<MemoryNodes>,
    pub machines: Vec<Machine>,
    pub policy: LedgerPolicy,
    pub absences: Absences,
    pub revocations: Revocations,
    pub enforcement: Enforcement,
    /// The first record has the UID of [`renewal`].
    uids: Uids,
}

impl World {
    #[expect(clippy::new_without_default, reason = "nobody needs it")]
    pub fn new() -> Self {
        Self::with(policy())
    }

    pub fn with(policy: LedgerPolicy) -> Self {
        Self {
            records: Arc::default(),
            nodes: Arc::default(),
            machines: ["m1", "m2", "m3"]
                .map(|name| machine(name, MachineState::Ready))
                .to_vec(),
            policy,
            absences: Absences::default(),
            revocations: Revocations::default(),
            enforcement: Enforcement::default(),
            uids: Uids::from([FIRST; 16]),
        }
    }

    /// A world in which `m1` has held `n1` with key 1 since hour 0.
    pub fn held(policy: LedgerPolicy) -> Self {
        let world = Self::with(policy);
        world.claims(&claim("m1", "n1", 1, 0), 0).unwrap();
        world
    }

    pub fn ledger(&self) -> RecordLedger {
        self.ledger_over(self.records.clone())
    }

    /// The records, in which this fault occurs.
    pub fn faulty(&self, fault: Fault) -> Arc<FaultyRecords> {
        Arc::new(FaultyRecords(self.records.clone(), fault))
    }

    /// The ledger that uses these records.
    pub fn ledger_over(&self, records: Arc<dyn Records>) -> RecordLedger {
        let machines = StaticInventory::new(self.machines.clone()).unwrap();
        RecordLedger::new(
            records,
            Arc::new(machines),
            self.nodes.clone(),
            self.policy,
            self.enforcement.clone(),
        )
        .with_uids(&self.uids)
        .with_absences(self.absences.clone())
        .with_revocations(self.revocations.clone())
    }

    pub fn claims(&self, claim: &Claim, hour: u32) -> Result<Grant, Refusal> {
        block_on(self.ledger().claim(claim, at(hour)))
    }

    /// The granted generation.
    #[track_caller]
    pub fn granted(&self, claim: &Claim, hour: u32) -> u64 {
        self.claims(claim, hour).unwrap().uid.generation
    }

    #[track_caller]
    pub fn denied(&self, claim: &Claim, hour: u32) -> Denial {
        match self.claims(claim, hour) {
            Err(Refusal::Deny(denial)) => denial,
            other => panic!("not denied: {other:?}"),
        }
    }

    /// The reason why the claim must wait.
    #[track_caller]
    pub fn waits(&self, claim: &Claim, hour: u32) -> &'static str {
        match self.claims(claim, hour) {
            Err(Refusal::Retry(deferral)) => deferral.reason(),
            other => panic!("not put off: {other:?}"),
        }
    }

    /// The result of a renewal of this generation of `n1`.
    pub fn renews(&self, machine: &str, generation: u64, hour: u32) -> Result<Grant, Refusal> {
        block_on(
            self.ledger()
                .renew(&renewal(machine, generation, hour), at(hour)),
        )
    }

    #[track_caller]
    pub fn renewal_denied(&self, machine: &str, generation: u64, hour: u32) -> Denial {
        match self.renews(machine, generation, hour) {
            Err(Refusal::Deny(denial)) => denial,
            other => panic!("not denied: {other:?}"),
        }
    }

    /// Changes the state of the machine, or deletes it.
    pub fn becomes(&mut self, name: &str, state: Option<MachineState>) {
        self.machines.retain(|machine| machine.name != name);
        self.machines
            .extend(state.map(|state| machine(name, state)));
    }

    /// Adds a Node without a provider ID, which is one hour old. Its Lease was renewed at `hour`, or one hour before
    /// `hour`.
    pub fn node(&self, node: &str, is_up: bool, hour: u32) {
        let renewed = if is_up { at(hour) } else { at(hour) - HOUR };
        let node_is = Node {
            uid: format!("node-{node}"),
            ready: is_up,
            lease_renewed: Some(renewed),
            provider_id: None,
            created: Some(at(hour) - HOUR),
        };
        self.nodes.put(name(node), node_is);
    }

    /// Adds a Node as [`node`](Self::node) does, but with the provider ID of this machine.
    pub fn node_of(&self, node: &str, machine: &str, is_up: bool, hour: u32) {
        self.node(node, is_up, hour);
        let mut node_is = block_on(self.nodes.state(&name(node))).unwrap().unwrap();
        node_is.provider_id = Some(provider_id(machine).to_string());
        self.nodes.put(name(node), node_is);
    }

    #[track_caller]
    pub fn record(&self, node: &str) -> Record {
        let stored = block_on(self.records.read(&name(node))).unwrap();
        stored.expect("a record").record
    }

    /// Changes the record as an operator would.
    #[track_caller]
    pub fn edit(&self, node: &str, change: impl FnOnce(&mut Record)) {
        let stored = block_on(self.records.read(&name(node))).unwrap();
        let Stored {
            mut record,
            version,
        } = stored.expect("a record");
        change(&mut record);
        block_on(self.records.replace(&record, &version)).unwrap();
    }

    pub fn reset(&self, node: &str) {
        self.edit(node, |record| record.reset = Some(record.generation));
    }

    pub fn revoke(&self, node: &str, hour: u32) {
        self.edit(node, |record| {
            record.revoked = Some(Revoked {
                generation: record.generation,
                at: at(hour),
            });
        });
    }
}
