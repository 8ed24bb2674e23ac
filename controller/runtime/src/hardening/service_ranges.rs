//! The Service addresses of a workload cluster. Nodes never get a serving certificate for one of them.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::Client;
use kube::api::{Api, ListParams};
use kubelet_attestation::ensure;

use node_attestation_core::serving::AddressRange;

use super::access::{HardeningError, call};
use crate::watch::{Lenient, one_of, page_of};

/// The maximum number of objects. A cluster has fewer objects: one, and another object for each extension of the range.
const MAX_RANGES: u32 = 500;

/// The maximum number of ranges in an object, and of addresses for a Service: one for each address family.
const FAMILIES: usize = 2;

/// The Service addresses that the API server reports.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ServiceAddresses {
    /// The ranges, and the addresses of the Service `kubernetes`.
    pub ranges: Vec<AddressRange>,
    /// Whether all ranges are known. `false` if the API server has no objects with ranges (before Kubernetes 1.33), or
    /// if one of the objects cannot be decoded.
    pub are_all: bool,
}

/// Reads the Service `kubernetes` and all objects that contain ranges, with two calls.
pub async fn read(client: &Client) -> Result<ServiceAddresses, HardeningError> {
    let kubernetes: Api<Lenient<Service>> = Api::namespaced(client.clone(), "default");
    let kubernetes = one_of(&kubernetes, "kubernetes");
    let kubernetes = call("get services/kubernetes", kubernetes).await?;
    // Only the addresses are kept, because a tenant's API server can return a large object and then never answer the
    // next call.
    let addresses: Vec<IpAddr> = kubernetes.into_iter().flat_map(addresses_of).collect();

    let objects: Api<Lenient<ServiceCIDR>> = Api::all(client.clone());
    let page = ListParams::default().limit(MAX_RANGES);
    let objects = match call("list servicecidrs", page_of(&objects, &page)).await {
        Err(error) if error.is_not_found() => Vec::new(),
        listed => {
            let listed = listed?;
            let most = usize::try_from(MAX_RANGES).unwrap_or(usize::MAX);
            let more = listed.metadata.continue_.as_ref();
            // A tenant's API server can return more objects than the controller requested.
            let is_all = more.is_none_or(String::is_empty) && listed.items.len() <= most;
            ensure!(
                is_all,
                HardeningError::TooMany {
                    object: "servicecidrs",
                    limit: most,
                }
            );
            listed.items
        }
    };
    let mut are_all = !objects.is_empty();
    let addresses = addresses.into_iter();
    let mut ranges: Vec<AddressRange> = addresses.map(AddressRange::from).collect();
    for object in objects {
        let spec = object.object.ok().and_then(|object| object.spec);
        let texts = spec.and_then(|spec| spec.cidrs).unwrap_or_default();
        let few = (1..=FAMILIES).contains(&texts.len()).then_some(texts);
        let read = few.and_then(|texts| {
            let ranges = texts.iter().map(|text| AddressRange::lenient(text));
            ranges.collect::<Option<Vec<_>>>()
        });
        are_all &= read.is_some();
        ranges.extend(read.into_iter().flatten());
    }
    Ok(ServiceAddresses { ranges, are_all })
}

fn addresses_of(service: Lenient<Service>) -> Vec<IpAddr> {
    let spec = service.object.ok().and_then(|service| service.spec);
    let addresses = spec.and_then(|spec| spec.cluster_ips).unwrap_or_default();
    // A Service can contain the text "None" instead of an address.
    addresses
        .iter()
        .take(FAMILIES)
        .filter_map(|text| text.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests;
