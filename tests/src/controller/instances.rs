//! What instances ask for, right as it begins.

use kubelet_attestation::names::{Audience, Provider};
use kubelet_authenticator_test_support::sts::Credentials;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Application, Bed, token_of_instance};
use crate::cloud::{Cloud, Instance, Parts};

/// What is not the instance's own in a request; nothing by default.
#[derive(Debug, Default)]
pub struct Change<'a> {
    /// Another's credentials.
    pub credentials: Option<&'a Credentials>,
    /// Another provider ID.
    pub provider_id: Option<&'a str>,
    /// Another node name.
    pub node_name: Option<&'a str>,
}

/// A request of an instance with the bootstrap token of this number, changed like this.
pub fn request(
    bed: &Bed,
    cloud: &Cloud,
    (number, instance): (usize, &Instance),
    change: &Change<'_>,
) -> Application {
    let ca = CertificateDer::from_pem_slice(bed.server.ca_pem().as_bytes()).unwrap();
    let audience = Audience::of_ca(&ca);
    let own = instance.provider_id();
    let own = instance.parts(&audience, &own, cloud.sts().now());
    let parts = Parts {
        credentials: change.credentials.unwrap_or(own.credentials),
        provider_id: change.provider_id.unwrap_or(own.provider_id),
        node_name: change.node_name.unwrap_or(own.node_name),
        ..own
    };
    let evidence = |spki: &[u8]| Some(cloud.evidence(&parts, spki));
    let (name, id) = (parts.node_name, parts.provider_id);
    let application = Application::proving(name, id, Provider::AWS, evidence);
    application.with_token(&token_of_instance(number))
}
