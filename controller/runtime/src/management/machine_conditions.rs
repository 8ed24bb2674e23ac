//! The conditions of one cluster's Machines, as they are written.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use kube::Client;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::ledger::{Record, Stored};

use crate::capi::CapiInventory;
use crate::client::CallError;
use crate::machine_conditions::{Outcome, Outcomes, WriteBudget, write};

/// The conditions of the Machines of one cluster.
#[derive(derive_more::Debug)]
pub(super) struct MachineConditions {
    #[debug(skip)]
    management: Client,
    budget: Arc<WriteBudget>,
    outcomes: Arc<Outcomes>,
    /// Whether a refused write was logged. The operator may not have granted it.
    told: bool,
}

impl MachineConditions {
    pub(super) fn new(management: Client, budget: Arc<WriteBudget>) -> Self {
        Self {
            management,
            budget,
            outcomes: Arc::default(),
            told: false,
        }
    }

    /// The outcomes that are to be written.
    pub(super) fn outcomes(&self) -> Arc<Outcomes> {
        self.outcomes.clone()
    }

    /// Adds the outcomes that records tell of and conditions do not: what was decided before a restart, what could not be
    /// written, and what people revoked.
    pub(super) fn compare(&self, inventory: &CapiInventory, records: &[Stored]) {
        let named = records.iter().filter_map(|stored| {
            let name = stored.record.holder.machine_name.as_deref()?;
            stored.record.is_live().then_some((name, &stored.record))
        });
        let named: BTreeMap<&str, &Record> = named.collect();
        let differing = inventory
            .machines_by_condition(|name, known| Outcome::of_record(named.get(name)?, known));
        for (machine, outcome) in differing.unwrap_or_default() {
            self.outcomes.add_former(&machine, outcome);
        }
    }

    /// Writes what is due, as far as the budget of the process goes. A failed write is left to the next round.
    pub(super) async fn write(&mut self, inventory: &CapiInventory, now: SystemTime) {
        let mut resource = None;
        while let Some((machine, outcome)) = self.outcomes.take() {
            let next = inventory.by_condition(&machine, |known| outcome.condition(known, now));
            let Some(condition) = next else { continue };
            if !self.budget.take() {
                self.outcomes.add_former(&machine, outcome);
                return;
            }
            if resource.is_none() {
                resource = inventory.machine_resource().await.ok().flatten();
            }
            let Some(resource) = &resource else { return };
            if let Err(error) = write(&self.management, resource, &machine, &condition).await {
                self.log(machine.name.as_deref().unwrap_or_default(), &error);
            }
        }
    }

    fn log(&mut self, machine: &str, error: &CallError) {
        let error = error_chain(error);
        if self.told {
            tracing::debug!(
                machine,
                error,
                "the condition of the Machine was not written"
            );
        } else {
            tracing::warn!(
                machine,
                error,
                "the condition of the Machine was not written; further failures are logged with -v"
            );
            self.told = true;
        }
    }
}
