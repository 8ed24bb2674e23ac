//! The policy of a cluster on instances.

use node_attestation_core::crd::AwsSettings;

use crate::credentials::Tenant;
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
    /// The owner of the instances.
    pub tenant: Tenant,
}

impl AwsPolicy {
    /// The policy of these settings, for the Cluster of this name. EC2 is asked as the controller.
    pub fn new(settings: &AwsSettings, cluster: Option<String>) -> Self {
        Self {
            settings: settings.clone(),
            cluster,
            tenant: Tenant::Controller,
        }
    }

    /// The same, with EC2 asked as this tenant.
    #[must_use]
    pub fn of_tenant(self, tenant: Tenant) -> Self {
        Self { tenant, ..self }
    }

    /// Checks that the instance of a document may be of the cluster, by where it is.
    ///
    /// # Errors
    ///
    /// [`AwsDenial::AccountNotAllowed`], [`AwsDenial::RegionNotAllowed`].
    pub fn accepts(&self, document: &VerifiedDocument) -> Result<(), AwsDenial> {
        self.accepts_place(&document.account, &document.region)
    }

    /// The same for the account and the region of an instance.
    pub(crate) fn accepts_place(&self, account: &str, region: &str) -> Result<(), AwsDenial> {
        if !is_among(account, &self.settings.accounts) {
            return Err(AwsDenial::AccountNotAllowed(account.to_owned()));
        }
        if !self.accepts_region(region) {
            return Err(AwsDenial::RegionNotAllowed(region.to_owned()));
        }
        Ok(())
    }

    /// Whether instances may be in this region.
    pub(crate) fn accepts_region(&self, region: &str) -> bool {
        is_among(region, &self.settings.regions)
    }
}

/// None listed is any.
fn is_among(one: &str, listed: &[String]) -> bool {
    listed.is_empty() || listed.iter().any(|other| other == one)
}
