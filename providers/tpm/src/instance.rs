//! The provider ID of a machine that is an EC2 instance.

use kubelet_attestation::names::ProviderId;
use kubelet_authenticator::attester::ProviderIdSources;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::{self, Imds, METADATA_ENDPOINT};

/// The vendor name in the firmware of an EC2 instance.
const VENDOR: &str = "Amazon EC2";

const ZONE: &str = "meta-data/placement/availability-zone";
const ID: &str = "meta-data/instance-id";

/// Returns the instance's provider ID; `None` if the machine is not an instance.
///
/// The vendor name in the firmware identifies instances, so other machines do not wait for a metadata service. If the
/// metadata service of an instance is unavailable, this function returns an error, because an outage must not change
/// the provider ID of a machine.
pub(crate) fn provider_id(sources: &ProviderIdSources<'_>) -> Result<Option<ProviderId>, Failure> {
    let endpoint = sources.settings.value(&METADATA_ENDPOINT);
    if endpoint.is_none() && sources.machine.vendor().as_deref() != Some(VENDOR) {
        return Ok(None);
    }
    let read = || {
        let imds = Imds::open(endpoint, sources.deadline)?;
        let zone = imds.read(ZONE, sources.deadline)?;
        Ok((zone, imds.read(ID, sources.deadline)?))
    };
    let (zone, id) = read().map_err(|error| unavailable(&error))?;
    named(&zone, &id).map(Some)
}

fn named(zone: &str, id: &str) -> Result<ProviderId, Failure> {
    imds::provider_id(zone, id).ok_or_else(|| {
        Failure::new(
            Code::EvidenceInvalid,
            "the instance metadata service did not return a valid instance ID",
            "check whether a proxy or an emulator answers instead of the instance metadata \
             service, or set providerID in \
             the settings",
        )
    })
}

fn unavailable(error: &Failure) -> Failure {
    let remedy = format!(
        "{}; or set providerID in the settings, or start the kubelet with --provider-id",
        error.remedy()
    );
    let what = "cannot determine the ID of this EC2 instance";
    Failure::new(error.code(), error.what(), remedy).within(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ec2_instance_has_the_provider_id_of_the_cloud_provider() {
        let id = named("eu-west-1a", "i-0123456789abcdef0").unwrap();

        assert_eq!(id.as_str(), "aws:///eu-west-1a/i-0123456789abcdef0");
    }

    #[test]
    fn an_invalid_zone_or_instance_id_is_refused() {
        for (zone, id) in [
            ("", "i-1"),
            ("a/b", "i-1"),
            ("a", ""),
            ("a", "1"),
            ("a", "i-1\n"),
            ("<html>", "i-1"),
        ] {
            assert_eq!(named(zone, id).unwrap_err().code(), Code::EvidenceInvalid);
        }
    }
}
