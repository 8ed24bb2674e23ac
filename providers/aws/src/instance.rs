//! The attester of an EC2 instance.

use std::sync::{Mutex, PoisonError};

use kubelet_attestation::binding::KeyBinding;
use kubelet_attestation::evidence::aws::AwsEvidence;
use kubelet_attestation::evidence::{Header, MAX_EVIDENCE_LEN};
use kubelet_attestation::names::{NodeName, Provider, ProviderId};
use kubelet_authenticator::attester::{Attester, Claim, ProviderIdSources};
use kubelet_authenticator::clock::{self, Deadline};
use kubelet_authenticator::failure::{Code, Failure};
use kubelet_authenticator::imds::{Imds, METADATA_ENDPOINT};
use kubelet_authenticator::settings::{Entry, Settings};

use crate::credentials::Credentials;
use crate::identity::{Identity, NOT_AWS};
use crate::name;
use crate::proof::prove;
use crate::settings::{self, NODE_NAME, PRINCIPAL, STS_ENDPOINT};

/// The identity document, signed with the region's RSA key of 2048 bits.
const RSA2048: &str = "dynamic/instance-identity/rsa2048";
const LOCAL_HOSTNAME: &str = "meta-data/local-hostname";
/// The domain of the partition's services. AWS in China and the sovereign clouds have other
/// domains.
const DOMAIN: &str = "meta-data/services/domain";

/// This instance. Each request uses new data from its metadata service.
#[derive(Debug, Default)]
pub(crate) struct Instance {
    /// The session that read the provider ID. The evidence that follows uses it too, so that both
    /// are of one moment and cost one token.
    session: Mutex<Option<Session>>,
}

#[derive(Debug)]
struct Session {
    imds: Imds,
    identity: Identity,
}

impl Attester for Instance {
    fn provider(&self) -> Provider {
        Provider::AWS
    }

    fn settings(&self) -> &'static [Entry] {
        settings::TABLE
    }

    fn provider_id(&self, sources: &ProviderIdSources<'_>) -> Result<ProviderId, Failure> {
        let session = Session::open(sources.settings, sources.deadline)?;
        let id = session.identity.provider_id.clone();
        if let Some(set) = sources
            .settings
            .provider_id
            .as_ref()
            .filter(|set| **set != id)
        {
            return Err(Failure::new(
                Code::Configuration,
                format!("providerID in the settings is {set}, and this instance is {id}"),
                "take providerID out of the settings: an instance knows it",
            ));
        }
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = Some(session);
        Ok(id)
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Option<Vec<u8>>, Failure> {
        let session = self
            .session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .filter(|session| session.imds.is_usable());
        let session = match session {
            Some(session) => session,
            None => Session::open(claim.settings, claim.deadline)?,
        };
        session.evidence(claim).map(Some)
    }

    fn secret_members(&self) -> &'static [&'static str] {
        &["accessKeyId", "sessionToken", "signature"]
    }
}

impl Session {
    fn open(settings: &Settings, deadline: Deadline) -> Result<Self, Failure> {
        let unreadable = |error: Failure| error.within("the instance's identity cannot be read");
        let imds = Imds::open(settings.value(&METADATA_ENDPOINT), deadline).map_err(unreadable)?;
        let rsa2048 = imds.read(RSA2048, deadline).map_err(unreadable)?;
        Ok(Self {
            imds,
            identity: Identity::parse(&rsa2048)?,
        })
    }

    fn evidence(&self, claim: &Claim<'_>) -> Result<Vec<u8>, Failure> {
        let (settings, deadline) = (claim.settings, claim.deadline);
        self.check_name(claim)?;
        let now = clock::now();
        let principal = settings.value(&PRINCIPAL).unwrap_or_default();
        let credentials = Credentials::read(&self.imds, principal, deadline)
            .and_then(|credentials| credentials.lasting(now))
            .map_err(|error| {
                error.within("the instance has no credentials to prove itself with")
            })?;
        let host = self.sts_host(settings, deadline)?;
        let binding = KeyBinding::new(
            &Provider::AWS,
            claim.audience,
            claim.provider_id,
            claim.node_name,
            claim.spki,
            &[&self.identity.digest],
        );
        let proof =
            prove(&self.identity.region, &host, &credentials, &binding, now).map_err(|error| {
                let what = "the instance's credentials cannot be used";
                Failure::new(Code::EvidenceInvalid, what, NOT_AWS).because(&error)
            })?;
        let evidence = AwsEvidence {
            header: Header {
                version: claim.version.clone(),
                audience: claim.audience.clone(),
            },
            rsa2048: self.identity.rsa2048.clone(),
            sts: proof,
        };
        let evidence = evidence.to_json();
        if evidence.len() > MAX_EVIDENCE_LEN {
            let what = format!(
                "the evidence has {} bytes, and verifiers read at most {MAX_EVIDENCE_LEN}",
                evidence.len()
            );
            return Err(Failure::new(Code::EvidenceInvalid, what, NOT_AWS));
        }
        Ok(evidence)
    }

    fn check_name(&self, claim: &Claim<'_>) -> Result<(), Failure> {
        let policy = claim.settings.value(&NODE_NAME).unwrap_or_default();
        name::check(policy, claim.node_name, &self.identity, || {
            let local_hostname = self.imds.find(LOCAL_HOSTNAME, claim.deadline);
            local_hostname.map_err(|error| error.within("the instance's name cannot be read"))
        })
    }

    /// The host of STS, from the settings or else of the region.
    fn sts_host(&self, settings: &Settings, deadline: Deadline) -> Result<String, Failure> {
        if let Some(endpoint) = settings.value(&STS_ENDPOINT) {
            return Ok(endpoint.host);
        }
        let domain = self
            .imds
            .read(DOMAIN, deadline)
            .map_err(|error| error.within("the domain of AWS's services cannot be read"))?;
        let domain = domain.trim();
        // It becomes part of a host name that is signed.
        if NodeName::parse(domain).is_err() || !domain.contains('.') {
            let what = "the instance metadata's domain of AWS's services is invalid";
            return Err(Failure::new(Code::EvidenceInvalid, what, NOT_AWS));
        }
        Ok(format!("sts.{}.{domain}", self.identity.region))
    }
}
