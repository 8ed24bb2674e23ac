//! What a cluster accepts of AWS.

use std::collections::{BTreeMap, BTreeSet};

use node_attestation_core::crd::{AwsNodeName, AwsSettings};
use node_attestation_core::refusal::AwsDenial;

use crate::document::VerifiedDocument;

/// What a cluster accepts of AWS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwsPolicy {
    /// The accounts that instances may be in; none is any.
    pub accounts: BTreeSet<String>,
    /// The regions that instances may be in; none is any.
    pub regions: BTreeSet<String>,
    /// The name of an instance that its Node has.
    pub node_name: AwsNodeName,
    /// Whether an instance must join with the root volume that it was launched with.
    pub root_volume_check: bool,
    /// Tags that an instance must have, with these values. They replace the tag that Cluster API
    /// owns its instances by.
    pub required_tags: BTreeMap<String, String>,
    /// The Cluster whose instances are accepted. `None` without Cluster API: then only
    /// [`required_tags`](Self::required_tags) tell whose an instance is.
    pub cluster: Option<String>,
}

impl AwsPolicy {
    /// The policy of these settings, for the Cluster of this name.
    pub fn new(settings: &AwsSettings, cluster: Option<String>) -> Self {
        Self {
            accounts: settings.accounts.iter().cloned().collect(),
            regions: settings.regions.iter().cloned().collect(),
            node_name: settings.node_name,
            root_volume_check: settings.root_volume_check,
            required_tags: settings.required_tags.clone(),
            cluster,
        }
    }

    /// Checks that the instance of a document may be of the cluster, by where it is.
    ///
    /// # Errors
    ///
    /// [`AwsDenial::AccountNotAllowed`], [`AwsDenial::RegionNotAllowed`].
    pub fn accepts(&self, document: &VerifiedDocument) -> Result<(), AwsDenial> {
        let VerifiedDocument {
            account, region, ..
        } = document;
        if !is_among(account, &self.accounts) {
            return Err(AwsDenial::AccountNotAllowed {
                account: account.clone(),
            });
        }
        if !self.accepts_region(region) {
            return Err(AwsDenial::RegionNotAllowed {
                region: region.clone(),
            });
        }
        Ok(())
    }

    /// Whether instances may be in this region.
    pub(crate) fn accepts_region(&self, region: &str) -> bool {
        is_among(region, &self.regions)
    }

    /// The account of all instances, where there is one.
    pub(crate) fn only_account(&self) -> Option<&str> {
        let mut accounts = self.accounts.iter();
        accounts
            .next()
            .filter(|_| accounts.next().is_none())
            .map(String::as_str)
    }
}

/// None listed is any.
fn is_among(one: &str, listed: &BTreeSet<String>) -> bool {
    listed.is_empty() || listed.contains(one)
}
