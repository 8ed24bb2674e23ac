//! The instances of one workload cluster, by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use clap::ValueEnum;
use kubelet_attestation::evidence::aws::is_region;
use node_attestation_aws::inventory::{
    InvalidInventory, InventorySettings, Place, TaggedInstances,
};
use node_attestation_core::crd::{AwsNodeName, AwsSettings};
use node_attestation_core::inventory::Inventory;

use crate::aws::Aws;

/// Digits of an account's ID.
const ACCOUNT_LEN: usize = 12;

/// The selector of a cluster's instances.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "One workload cluster on AWS, without a management cluster")]
#[expect(
    clippy::struct_field_names,
    reason = "the names of the options follow from them"
)]
pub(super) struct StandaloneAwsArguments {
    /// The machines are the instances that have every --aws-required-tag, in every --aws-account and
    /// --aws-region
    #[arg(
        long, group = "machines", requires = "workload_kubeconfig",
        requires_all = ["attestor", "aws_accounts", "aws_regions", "aws_required_tags"]
    )]
    pub(super) aws_inventory: bool,
    /// An account that instances may be in; any, if none is given
    #[arg(long = "aws-account", value_name = "ACCOUNT", value_parser = account, requires = "attestor")]
    aws_accounts: Vec<String>,
    /// A region that instances may be in; any, if none is given
    #[arg(long = "aws-region", value_name = "REGION", value_parser = region, requires = "attestor")]
    aws_regions: Vec<String>,
    /// A tag that an instance must have
    #[arg(long = "aws-required-tag", value_name = "KEY=VALUE", value_parser = tag, requires = "attestor")]
    aws_required_tags: Vec<(String, String)>,
    /// The name of the Cluster whose ownership tag, as Cluster API writes it, an instance must have,
    /// where no tag is required
    #[arg(long, value_name = "NAME", requires = "attestor")]
    pub(super) aws_cluster_name: Option<String>,
    /// The name of an instance that is its Node's
    #[arg(long, value_name = "NAME", value_enum, default_value_t = NodeNamePolicy::PrivateDnsName, requires = "attestor")]
    aws_node_name: NodeNamePolicy,
    /// Let instances join also with another root volume than they were launched with
    #[arg(long, requires = "attestor")]
    aws_any_root_volume: bool,
}

/// The name of an instance that its Node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum NodeNamePolicy {
    /// The private DNS name.
    PrivateDnsName,
    /// The instance's ID, which is never used again.
    InstanceId,
}

impl StandaloneAwsArguments {
    /// The settings, as in `spec.aws`.
    pub(super) fn settings(&self) -> AwsSettings {
        AwsSettings {
            accounts: self.aws_accounts.clone(),
            regions: self.aws_regions.clone(),
            node_name: self.node_name(),
            root_volume_check: !self.aws_any_root_volume,
            required_tags: self.tags(),
            service_account_identity: None,
        }
    }

    /// The first given option for the evidence of instances.
    pub(super) fn said_of_evidence(&self) -> Option<&'static str> {
        let name = self.aws_cluster_name.as_ref().map(|_| "--aws-cluster-name");
        name.or(self.aws_any_root_volume.then_some("--aws-any-root-volume"))
    }

    /// The machines.
    pub(super) fn inventory(&self, aws: &Aws) -> Result<Arc<dyn Inventory>, InvalidInventory> {
        let regions = |account: &String| {
            let place = |region: &String| Place {
                account: account.clone(),
                region: region.clone(),
            };
            self.aws_regions.iter().map(place).collect::<Vec<_>>()
        };
        let settings = InventorySettings {
            places: self.aws_accounts.iter().flat_map(regions).collect(),
            tags: self.tags(),
            node_name: self.node_name(),
        };
        let instances = aws.instances.clone();
        Ok(Arc::new(TaggedInstances::new(instances, settings)?))
    }

    fn node_name(&self) -> AwsNodeName {
        match self.aws_node_name {
            NodeNamePolicy::PrivateDnsName => AwsNodeName::PrivateDnsName,
            NodeNamePolicy::InstanceId => AwsNodeName::InstanceId,
        }
    }

    fn tags(&self) -> BTreeMap<String, String> {
        self.aws_required_tags.iter().cloned().collect()
    }
}

fn account(text: &str) -> Result<String, String> {
    if text.len() == ACCOUNT_LEN && text.bytes().all(|b| b.is_ascii_digit()) {
        Ok(text.to_owned())
    } else {
        Err("an account is twelve digits".to_owned())
    }
}

fn region(text: &str) -> Result<String, String> {
    if is_region(text) {
        Ok(text.to_owned())
    } else {
        Err("a region is one of AWS, such as eu-west-1".to_owned())
    }
}

fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        Some(_) | None => Err("a tag is given as KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_a_key_and_perhaps_a_value() {
        assert_eq!(tag("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert_eq!(tag("a="), Ok(("a".to_owned(), String::new())));
        assert!(tag("a").is_err());
        assert!(tag("=b").is_err());
    }

    #[test]
    fn accounts_and_regions_have_their_form() {
        assert!(account("123456789012").is_ok() && account("12345678901").is_err());
        assert!(region("eu-west-1").is_ok() && region("eu-west-1/..").is_err());
    }
}
