//! The policy of a cluster on instances.

use node_attestation_core::crd::AwsSettings;

use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;

/// The policy of a cluster on instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsPolicy {
    /// The settings of the Cluster.
    pub settings: AwsSettings,
    /// The Cluster whose instances are accepted. `None` without Cluster API: then only the required
    /// tags tell whose an instance is.
    pub cluster: Option<String>,
}

impl AwsPolicy {
    /// The policy of these settings, for the Cluster of this name.
    pub fn new(settings: &AwsSettings, cluster: Option<String>) -> Self {
        Self {
            settings: settings.clone(),
            cluster,
        }
    }

    /// Checks that the instance of a document may be of the cluster, by where it is.
    ///
    /// # Errors
    ///
    /// [`AwsDenial::AccountNotAllowed`], [`AwsDenial::RegionNotAllowed`].
    pub fn accepts(&self, document: &VerifiedDocument) -> Result<(), AwsDenial> {
        if !is_among(&document.account, &self.settings.accounts) {
            return Err(AwsDenial::AccountNotAllowed(document.account.clone()));
        }
        if !self.accepts_region(&document.region) {
            return Err(AwsDenial::RegionNotAllowed(document.region.clone()));
        }
        Ok(())
    }

    /// Whether instances may be in this region.
    pub(crate) fn accepts_region(&self, region: &str) -> bool {
        is_among(region, &self.settings.regions)
    }

    /// The account of all instances, where there is one.
    pub(crate) fn only_account(&self) -> Option<&str> {
        let accounts = &self.settings.accounts;
        let first = accounts.first()?;
        let is_only = accounts.iter().all(|account| account == first);
        is_only.then_some(first)
    }
}

/// None listed is any.
fn is_among(one: &str, listed: &[String]) -> bool {
    listed.is_empty() || listed.iter().any(|other| other == one)
}
