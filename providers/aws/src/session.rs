//! A session with the instance's metadata service, and the identity from its document.

use kubelet_attestation::names::NodeName;
use kubelet_authenticator::clock::Deadline;
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::{Imds, METADATA_ENDPOINT, Text};
use kubelet_authenticator::settings::Settings;

use crate::identity::{Identity, NOT_AWS};
use crate::name;
use crate::settings::{NODE_NAME, STS_ENDPOINT};

/// The path of the identity document that is signed with the region's 2048-bit RSA key.
const RSA2048: &str = "dynamic/instance-identity/rsa2048";
const LOCAL_HOSTNAME: &str = "meta-data/local-hostname";
/// The path of the DNS domain of the AWS partition's services. China and the sovereign clouds have different domains.
const DOMAIN: &str = "meta-data/services/domain";

/// A session with the metadata service, and the instance's identity at its start.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) imds: Imds,
    pub(crate) identity: Identity,
}

impl Session {
    /// Opens a session and reads the identity.
    pub(crate) fn open(settings: &Settings, deadline: Deadline) -> Result<Self, Failure> {
        let unreadable = |error: Failure| error.within("cannot read the instance's identity");
        let imds = Imds::open(settings.value(&METADATA_ENDPOINT), deadline).map_err(unreadable)?;
        let rsa2048 = imds.read(RSA2048, deadline).map_err(unreadable)?;
        Ok(Self {
            imds,
            identity: Identity::parse(&rsa2048)?,
        })
    }

    /// Compares the instance's provider ID with `providerID` in the settings.
    pub(crate) fn check_provider_id(&self, settings: &Settings) -> Result<(), Failure> {
        let id = &self.identity.provider_id;
        match &settings.provider_id {
            Some(set) if set != id => Err(Failure::new(
                Code::Configuration,
                format!("providerID in the settings is {set}, but this instance is {id}"),
                "remove providerID from the settings: the plugin reads it from the instance",
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Checks that the node's name is a name that EC2 reports for the instance.
    pub(crate) fn check_name(
        &self,
        settings: &Settings,
        node_name: &NodeName,
        deadline: Deadline,
    ) -> Result<(), Failure> {
        let policy = settings.value(&NODE_NAME).unwrap_or_default();
        name::check(policy, node_name, &self.identity, || {
            self.local_hostname(deadline)
        })
    }

    /// Returns the instance's names in the metadata.
    pub(crate) fn local_hostname(&self, deadline: Deadline) -> Result<Option<Text>, Failure> {
        let local_hostname = self.imds.find(LOCAL_HOSTNAME, deadline);
        local_hostname.map_err(|error| error.within("cannot read the instance's name"))
    }

    /// Returns the STS host, from the settings or otherwise from the region.
    pub(crate) fn sts_host(
        &self,
        settings: &Settings,
        deadline: Deadline,
    ) -> Result<String, Failure> {
        if let Some(endpoint) = settings.value(&STS_ENDPOINT) {
            return Ok(endpoint.host);
        }
        let domain = self
            .imds
            .read(DOMAIN, deadline)
            .map_err(|error| error.within("cannot read the domain of the AWS services"))?;
        let domain = domain.trim();
        // The domain becomes part of the signed host name.
        if NodeName::parse(domain).is_err() || !domain.contains('.') {
            let what =
                "the instance metadata service returned an invalid domain for the AWS services";
            return Err(Failure::new(Code::EvidenceInvalid, what, NOT_AWS));
        }
        Ok(format!("sts.{}.{domain}", self.identity.region))
    }
}
