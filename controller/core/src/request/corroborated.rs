//! A request for names that belong to the requesting machine.

use super::{ConformantServingCsr, ServingRequest};
use crate::identifiers::{CertificateUid, ServingName};
use crate::inventory::{Inventory, Machine};
use crate::ledger::RecordLedger;
use crate::pace::{PAGE, Pace};
use crate::policy::{machine, serving_machine};
use crate::refusal::{Deferral, Denial, Refusal, Unavailable};
use crate::serving::ServingPolicy;
use crate::verifier::{Assurance, AttestedIdentity, Identity, Verifiers};

/// The number of name lookups between two pauses. A request can contain 1,024 names, and a tenant can create many
/// requests of this size.
const LOOKUPS: usize = 16;

/// A request for a serving certificate from an attested machine. All requested names and addresses belong to this
/// machine.
#[derive(Debug)]
pub struct CorroboratedCsr {
    csr: ConformantServingCsr,
    uid: CertificateUid,
    identity: AttestedIdentity,
    machine: Machine,
}

impl ConformantServingCsr {
    /// Finds the machine through the node's node identity, and compares the requested names with the reported names of
    /// this machine and of all other machines.
    ///
    /// The node name comes from the node identity, which stores the name with which the machine joined. If the platform
    /// reports a Node name, that name was verified when the machine joined, and it can differ from the name in the
    /// inventory. The platform is queried for names and addresses that no other source reports, because the inventory
    /// does not contain names and addresses for pool members.
    ///
    /// According to the proposal, a serving certificate "only has IP and DNS subjectAltNames that belong to the
    /// requesting node". An insecure provider does not allow serving certificates.
    pub async fn corroborate(
        self,
        ledger: &RecordLedger,
        inventory: &dyn Inventory,
        verifiers: &Verifiers,
        policy: &ServingPolicy,
    ) -> Result<CorroboratedCsr, Refusal> {
        let request = self.request();
        let holder = ledger.holder(&request.node_name, Some(request.uid)).await?;
        let identity = match holder.assurance {
            Assurance::Attested(identity) => identity,
            Assurance::None(_) => {
                let node_name = request.node_name.clone();
                return Err(Denial::UnattestedServing(node_name).into());
            }
        };
        let provider_id = &identity.identity().provider_id;
        let machine = inventory
            .by_provider_id(provider_id)
            .await
            .map_err(unavailable)?
            .ok_or(Deferral::MachineNotFound)?;
        machine::may_go_on(&machine)?;
        let is_reported = |name: &ServingName, reported: &[ServingName]| {
            serving_machine::is_reported(name, &request.node_name, &machine, reported)
        };
        let names = &request.names;
        let may_be_services = serving_machine::may_be_services(names, policy);
        let (mut by_platform, mut reported) = (None, Vec::new());
        if may_be_services || names.iter().any(|name| is_reported(name, &[]).is_err()) {
            by_platform = verifiers
                .serving_names(provider_id, &holder.attestor)
                .await
                .map_err(Deferral::VerifierUnavailable)?;
            reported = match (&by_platform, &policy.node_reported) {
                // If the platform reports names, the node's own report is ignored.
                (Some(names), _) => names.clone(),
                (None, Some(guest)) => {
                    guest.names(&request.node_name).await.map_err(unavailable)?
                }
                (None, None) => Vec::new(),
            };
            // The list is sorted for fast lookups, because a node can report as many names as it requests.
            reported.sort_unstable();
        }
        for name in names {
            let reported = is_reported(name, &reported);
            reported.map_err(|denial| serving_machine::not_reported(denial, &machine))?;
        }
        if may_be_services {
            serving_machine::is_the_platforms(names, by_platform.as_deref())?;
        }
        // Free the lists before the lookups: a node can report many names, and a tenant can prolong the lookups.
        drop((by_platform, reported));
        let mut pace = Pace::default();
        for name in &request.names {
            pace.steps(PAGE / LOOKUPS).await;
            let have_it = have_it(name, inventory).await.map_err(unavailable)?;
            serving_machine::is_nobody_elses(name, &machine, &have_it)?;
        }
        Ok(CorroboratedCsr {
            csr: self,
            uid: holder.uid,
            identity,
            machine,
        })
    }
}

async fn have_it(
    name: &ServingName,
    inventory: &dyn Inventory,
) -> Result<Vec<Machine>, Unavailable> {
    match name {
        ServingName::Dns(name) => inventory.by_name(name).await,
        ServingName::Ip(address) => inventory.by_address(*address).await,
    }
}

fn unavailable(source: Unavailable) -> Deferral {
    Deferral::InventoryUnavailable(source)
}

impl CorroboratedCsr {
    /// The requested certificate.
    pub fn request(&self) -> &ServingRequest {
        self.csr.request()
    }

    /// The UID in the requesting node's certificate.
    pub fn uid(&self) -> CertificateUid {
        self.uid
    }

    /// The identity of the node's machine.
    pub fn identity(&self) -> &Identity {
        self.identity.identity()
    }

    /// The machine, from the inventory.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
}
