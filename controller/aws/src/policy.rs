//! A cluster's policy for instances.

use node_attestation_core::crd::AwsSettings;

use crate::credentials::Tenant;
use crate::denial::AwsDenial;
use crate::document::VerifiedDocument;

/// A cluster's policy for instances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsPolicy {
    /// The settings of the Cluster.
    pub settings: AwsSettings,
    /// The Cluster whose instances are accepted. `None` without Cluster API. In this case, only the required tags
    /// identify the instances of the cluster.
    pub cluster: Option<String>,
    /// The owner of the instances.
    pub tenant: Tenant,
}

impl AwsPolicy {
    /// Creates the policy with these settings, for the Cluster with this name. EC2 is called with the controller's
    /// credentials.
    pub fn new(settings: &AwsSettings, cluster: Option<String>) -> Self {
        Self {
            settings: settings.clone(),
            cluster,
            tenant: Tenant::Controller,
        }
    }

    /// Returns the same policy, but EC2 is called with this tenant's credentials.
    #[must_use]
    pub fn of_tenant(self, tenant: Tenant) -> Self {
        Self { tenant, ..self }
    }

    /// Checks that a document's instance can belong to the cluster, according to its account and region.
    ///
    /// # Errors
    ///
    /// [`AwsDenial::AccountNotAllowed`], [`AwsDenial::RegionNotAllowed`].
    pub fn accepts(&self, document: &VerifiedDocument) -> Result<(), AwsDenial> {
        self.accepts_place(&document.account, &document.region)
    }

    /// Checks that an instance with this account and region can belong to the cluster.
    pub(crate) fn accepts_place(&self, account: &str, region: &str) -> Result<(), AwsDenial> {
        if !is_among(account, &self.settings.accounts) {
            return Err(AwsDenial::AccountNotAllowed(account.to_owned()));
        }
        if !self.accepts_region(region) {
            return Err(AwsDenial::RegionNotAllowed(region.to_owned()));
        }
        Ok(())
    }

    /// Whether the policy accepts instances in this region.
    pub(crate) fn accepts_region(&self, region: &str) -> bool {
        is_among(region, &self.settings.regions)
    }
}

/// Whether the list contains the value. An empty list accepts every value.
fn is_among(one: &str, listed: &[String]) -> bool {
    listed.is_empty() || listed.iter().any(|other| other == one)
}
