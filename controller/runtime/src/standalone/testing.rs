//! Test hooks that make the writes of a controller fail.

use std::sync::Arc;

use node_attestation_core::decide::Context;
use node_attestation_core::ledger::{RecordLedger, Records};

use super::Standalone;
use crate::csr_writer::RequestStore;
use crate::nodes::KubeNodes;

impl Standalone {
    /// Writes through the store that `wrap` returns, so that tests can make a write fail.
    #[must_use]
    pub fn with_store(
        mut self,
        wrap: impl FnOnce(Arc<dyn RequestStore>) -> Arc<dyn RequestStore>,
    ) -> Self {
        self.store = wrap(self.store);
        self
    }

    /// Keeps records in the store that `wrap` returns, so that tests can make a write fail.
    #[must_use]
    pub fn with_records(mut self, wrap: impl FnOnce(Arc<dyn Records>) -> Arc<dyn Records>) -> Self {
        let Context {
            ledger,
            inventory,
            enforcement,
            ..
        } = &mut self.context;
        let nodes = Arc::new(KubeNodes::new(self.access.client().clone()));
        let (records, policy) = (wrap(ledger.records().clone()), *ledger.policy());
        let enforcement = enforcement.clone();
        let machines = inventory.clone();
        *ledger = Arc::new(RecordLedger::new(
            records,
            machines,
            nodes,
            policy,
            enforcement,
        ));
        self
    }
}
