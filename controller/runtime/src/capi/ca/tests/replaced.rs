//! Tests that replace a CA with the steps in docs/ca-rotation.md.

use node_attestation_core::decide::Context;
use node_attestation_core::testing::{UID, cluster, issued_at, now, renewal, valid};

use super::*;

/// The Secret's content and the nodes' kubeconfigs after a step.
struct Step<'a> {
    number: u8,
    /// The certificates in the Secret. The first certificate signs.
    secret: &'a [&'a Ca],
    /// The CAs in the kubeconfigs of the nodes.
    nodes: &'a [&'a Ca],
}

/// Creates the context and the CA of a cluster whose Secret contains these certificates, and the key of the first one.
fn with(context: Context, certificates: &[&Ca]) -> (Context, ClusterCa) {
    let pem: Vec<_> = certificates.iter().map(|ca| &*ca.certificate).collect();
    let values = [
        ("tls.crt", &*pem.concat()),
        ("tls.key", &*certificates[0].key),
    ];
    let ca = ClusterCa::from_secret(&secret(&values)).unwrap();
    let context = Context {
        audiences: ca.audiences().collect(),
        signer: ca.signer().unwrap().clone(),
        ..context
    };
    (context, ca)
}

#[test]
fn each_step_of_a_ca_replacement_signs_with_the_first_certificate() {
    let (former, new) = (ca(), ca());
    let (mut context, _) = with(cluster(), &[&former]);
    issued_at(&valid(), &context, now());
    let of_former = Audience::of_ca(&der(&former.certificate));
    let step = |number, secret, nodes| Step {
        number,
        secret,
        nodes,
    };

    for Step {
        number,
        secret,
        nodes,
    } in [
        // The API servers trust both CAs.
        step(1, &[&former][..], &[&former][..]),
        step(2, &[&former, &new], &[&former]),
        // The two steps can be made in either order.
        step(3, &[&former, &new], &[&former, &new]),
        step(3, &[&former, &new], &[&new, &former]),
        step(4, &[&new, &former], &[&new, &former]),
        // The nodes renew their certificates. The controller still answers requests whose evidence was created before
        // this step.
        step(5, &[&new, &former], &[&former, &new]),
        step(6, &[&new], &[&new]),
    ] {
        let read;
        (context, read) = with(context, secret);
        let audience = Audience::of_ca(&der(&nodes[0].certificate));
        assert!(read.audiences().any(|meant| meant == audience), "{number}");

        let issued = issued_at(&renewal(UID), &context, now());

        assert_eq!(issued.uid.to_string(), UID, "{number}");
        let signer = context.signer.ca_der();
        assert_eq!(signer, der(&secret[0].certificate), "{number}");
        // The request is denied with `AudienceMismatch`.
        let is_former_meant = read.audiences().any(|meant| meant == of_former);
        assert_eq!(is_former_meant, number < 6, "{number}");
    }
}

#[test]
fn evidence_for_a_replaced_ca_is_refused_for_the_new_ca() {
    let (former, new) = (ca(), ca());
    let of_former = Audience::of_ca(&der(&former.certificate));
    for (current, is_meant) in [(&former, true), (&new, false)] {
        let (_, read) = with(cluster(), &[current]);
        assert_eq!(read.audiences().any(|meant| meant == of_former), is_meant);
    }
}
