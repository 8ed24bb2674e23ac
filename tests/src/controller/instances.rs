//! Requests from instances.

use kubelet_attestation::names::{Audience, Provider};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::{Application, Bed, token_of_instance};
use crate::cloud::{Cloud, Instance};

/// A request from an instance with the bootstrap token of the first machine.
pub fn request(bed: &Bed, cloud: &Cloud, instance: &Instance) -> Application {
    let ca = CertificateDer::from_pem_slice(bed.server.ca_pem().as_bytes()).unwrap();
    let audience = Audience::of_ca(&ca);
    let id = instance.provider_id();
    let parts = instance.parts(&audience, &id, cloud.sts().now());
    let evidence = |spki: &[u8]| Some(cloud.evidence(&parts, spki));
    let application = Application::proving(parts.node_name, &id, Provider::AWS, evidence);
    application.with_token(&token_of_instance(0))
}
