//! The bootstrap tokens of a workload cluster.

use node_attestation_core::crd::BootstrapTokens;

use super::{Health, Upkeep, part};
use crate::clock::{elapsed, now};

impl Upkeep {
    /// Extends the tokens of existing machines, and expires those of machines that are gone.
    pub(super) async fn keep_tokens(&mut self, health: &mut Health) {
        match self.spec.bootstrap_tokens {
            BootstrapTokens::Manage => {}
            BootstrapTokens::Ignore => return,
        }
        // Before the Machines are known, no token is expired.
        let Some(wanted) = self.inventory.tokens().await else {
            return;
        };
        let now = now();
        let kept = part(
            self.tokens
                .keep(self.access.client(), &wanted, now, elapsed()),
        )
        .await;
        if let Some(kept) = health.note("bootstrap tokens", kept) {
            for token in kept.extended {
                tracing::debug!(token = token.as_str(), "the bootstrap token was extended");
            }
            for token in kept.ended {
                tracing::debug!(
                    token = token.as_str(),
                    "the bootstrap token of a machine that is gone was expired"
                );
            }
        }
        let former = self
            .tokens
            .find_former(self.access.client(), &wanted, now, elapsed());
        health.note(
            "bootstrap tokens that were extended before",
            part(former).await,
        );
    }
}
