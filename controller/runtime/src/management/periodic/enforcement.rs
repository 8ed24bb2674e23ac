//! The decision whether attestation is enforced, and the paths that bypass attestation.

use std::collections::BTreeSet;

use futures::future::FutureExt as _;
use kubelet_attestation::errors::error_chain;
use node_attestation_core::cluster_line;

use super::PeriodicTasks;
use super::nodes::without_identity;
use super::parts::{PartError, cut, part};
use crate::hardening::{HardeningError, admission, auto_approve_audit, bindings};
use crate::management::cluster_status::AutoApprove;
use crate::management::spec_mapping::{is_to_be_enforced, stays_enforced};

impl PeriodicTasks {
    /// Decides whether attestation is enforced from now on. If attestation is not enforced, or if enforcement does not
    /// wait, returns the message about Nodes without a record, or about templates without the plugin. After attestation
    /// is enforced, it stays enforced while the settings require it. Otherwise, any user who can create a Node without
    /// a record could open all auto-approval paths again.
    ///
    /// # Errors
    ///
    /// Returns an error if it is unknown whether attestation was enforced. The settings then do not change.
    pub(super) async fn enforce(
        &mut self,
        without: Result<BTreeSet<String>, PartError>,
    ) -> Result<Option<String>, PartError> {
        // A previous controller process could have enforced attestation.
        let mut enforced = stays_enforced(&self.spec)
            && (self.enforces_now()
                || self.is_enforcing()
                || part(admission::is_enforced(self.access.client())).await?);
        let mut told = None;
        if !enforced
            && is_to_be_enforced(&self.spec)
            && without.as_ref().is_ok_and(BTreeSet::is_empty)
        {
            told = self.templates_without_plugin().boxed().await;
            enforced = told.is_none();
        }
        if enforced != self.is_enforcing() {
            cluster_line!(self.context.ledger.lines(), INFO, enforced, "attestation");
        }
        self.context.enforcement.set(enforced);
        self.admission.enforced = enforced;
        if enforced && !self.enforces_now() {
            return Ok(None);
        }
        Ok(told.or_else(|| without_identity(without, enforced)))
    }

    /// The state of the auto-approval paths, and the message about them. The message starts with `told`.
    pub(super) async fn paths(
        &self,
        mut told: Vec<String>,
    ) -> Result<(AutoApprove, String), HardeningError> {
        let client = self.access.client();
        let lines = self.machine_conditions.lines();
        let mut memory = bindings::memory_of(lines);
        let mut scan = bindings::scan_of(client, lines, &mut memory).await?;
        let mut refusals = Vec::new();
        if self.is_enforcing() {
            let removed = bindings::remove(client, &mut scan).await?;
            for binding in removed.names {
                cluster_line!(lines, INFO, binding, "removed");
            }
            refusals = removed.refusals;
        }
        let open = auto_approve_audit::examine(client, &scan).await?;
        let found = if is_to_be_enforced(&self.spec) && !self.is_enforcing() {
            AutoApprove::Waiting
        } else if open.is_empty() {
            AutoApprove::Closed
        } else if scan.open.iter().all(|one| one.is_kubeadms) {
            AutoApprove::Bindings
        } else {
            AutoApprove::Open
        };
        told.push(auto_approve_audit::message(&open));
        told.extend(refusals.iter().map(|error| cut(error_chain(error))));
        Ok((found, told.join("; ")))
    }
}
