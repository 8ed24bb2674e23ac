//! Tests of server certificates.

use std::net::Ipv4Addr;
use std::time::{Duration, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kubelet_authenticator_test_support::clock::now;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, CustomExtension, DnType,
    ExtendedKeyUsagePurpose as Purpose, GeneralSubtree, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    NameConstraints, SanType,
};

use super::bed::{Bed, Form, Server, kubeconfig};

const HOUR: Duration = Duration::from_hours(1);

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca_params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (now() - HOUR).into();
    params.not_after = (now() + HOUR).into();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params
}

fn leaf_params(names: &[&str]) -> CertificateParams {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let mut params = CertificateParams::new(names).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, "kube-apiserver");
    params.not_before = (now() - HOUR).into();
    params.not_after = (now() + HOUR).into();
    params.is_ca = IsCa::ExplicitNoCa;
    params.extended_key_usages = vec![Purpose::ServerAuth];
    params
}

fn ca(params: CertificateParams) -> Ca {
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A server with this chain, and a kubeconfig that lists these CA certificates.
fn served(name: &'static str, host: &str, chain: &str, key: &str, listed: &str) -> Form {
    let bed = Bed::start();
    let server = Server::start(chain, key);
    let url = format!("https://{host}:{}", server.port);
    Form::new(name, &bed, kubeconfig(&url, &STANDARD.encode(listed)))
}

/// A certificate with these contents from the CA `issuer`. The certificate contains the loopback name, unless `change`
/// removes it.
fn signed(
    name: &'static str,
    host: &str,
    issuer: impl FnOnce(&mut CertificateParams),
    leaf: impl FnOnce(&mut CertificateParams),
) -> Form {
    let mut params = ca_params("kubernetes");
    issuer(&mut params);
    let key = KeyPair::generate().unwrap();
    let listed = params.self_signed(&key).unwrap().pem();
    // The issuer signs the certificate, regardless of the contents of the issuer's own certificate.
    let ca = Issuer::new(ca_params("kubernetes"), key);
    let mut params = leaf_params(&["127.0.0.1", "localhost"]);
    leaf(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    served(
        name,
        host,
        &certificate.pem(),
        &key.serialize_pem(),
        &listed,
    )
}

fn leaf(name: &'static str, change: impl FnOnce(&mut CertificateParams)) -> Form {
    signed(name, "127.0.0.1", |_| {}, change)
}

fn issuer(name: &'static str, change: impl FnOnce(&mut CertificateParams)) -> Form {
    signed(name, "127.0.0.1", change, |_| {})
}

/// A server with these DNS names, which receives requests for one of them with tls-server-name.
fn named(name: &'static str, presented: &str, wanted: &str) -> Form {
    let ca = ca(ca_params("kubernetes"));
    let mut params = leaf_params(&[]);
    params.subject_alt_names = vec![SanType::DnsName(presented.try_into().unwrap())];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &ca).unwrap();
    let bed = Bed::start();
    let server = Server::start(&certificate.pem(), &key.serialize_pem());
    let text = kubeconfig(
        &format!("https://127.0.0.1:{}", server.port),
        &STANDARD.encode(ca.pem()),
    );
    let field = format!("    tls-server-name: \"{wanted}\"\ncontexts:");
    Form::new(name, &bed, text.replacen("contexts:", &field, 1))
}

/// A critical extension with this OID.
fn critical(params: &mut CertificateParams, oid: &[u64], value: &[u8]) {
    let mut extension = CustomExtension::from_oid_content(oid, value.to_vec());
    extension.set_criticality(true);
    params.custom_extensions.push(extension);
}

/// certificatePolicies with anyPolicy.
const POLICIES: (&[u64], &[u8]) = (
    &[2, 5, 29, 32],
    &[0x30, 0x08, 0x30, 0x06, 0x06, 0x04, 0x55, 0x1d, 0x20, 0x00],
);

pub fn forms() -> Vec<Form> {
    let mut forms = purposes();
    forms.extend(names());
    forms.extend(issuers());
    forms.extend(listed());
    forms.extend(chains());
    forms.extend(super::openssl::forms());
    forms.push(deep("six intermediates", 6));
    forms.push(deep("seven intermediates", 7).stricter("6 intermediate"));
    forms
}

fn purposes() -> Vec<Form> {
    let purposes =
        |name, purposes: Vec<Purpose>| leaf(name, |params| params.extended_key_usages = purposes);
    vec![
        purposes("serverAuth", vec![Purpose::ServerAuth]),
        purposes("no extended key usage", vec![]),
        purposes("any extended key usage", vec![Purpose::Any]),
        purposes(
            "serverAuth and clientAuth",
            vec![Purpose::ClientAuth, Purpose::ServerAuth],
        ),
        purposes("only clientAuth", vec![Purpose::ClientAuth]),
        leaf("server certificate that expired", |params| {
            params.not_after = (now() - HOUR / 2).into()
        }),
        leaf("server certificate of the future", |params| {
            params.not_before = (now() + HOUR / 2).into()
        }),
        leaf("server certificate from before 1970", |params| {
            params.not_before = (UNIX_EPOCH - HOUR).into()
        })
        .stricter("not valid X.509"),
        leaf("server certificate that is a CA", |params| {
            params.is_ca = ca_params("").is_ca
        })
        .stricter("itself a CA certificate"),
        leaf("critical certificate policies", |params| {
            critical(params, POLICIES.0, POLICIES.1)
        })
        .stricter("critical extension"),
        leaf("unknown critical extension", |params| {
            critical(params, &[1, 2, 3, 4], &[5, 0])
        }),
        leaf("serial number of 21 bytes", |params| {
            params.serial_number = Some([&[1; 21][..]].concat().into());
        }),
    ]
}

fn names() -> Vec<Form> {
    vec![
        leaf("certificate without names", |params| {
            params.subject_alt_names.clear()
        }),
        leaf("address as a DNS name", |params| {
            params.subject_alt_names = vec![SanType::DnsName("127.0.0.1".try_into().unwrap())];
        }),
        leaf(
            "certificate for an IPv4 address in the form of IPv6",
            |params| {
                let mapped = Ipv4Addr::LOCALHOST.to_ipv6_mapped();
                params.subject_alt_names = vec![SanType::IpAddress(mapped.into())];
            },
        ),
        leaf("certificate with an invalid URI", |params| {
            let uri = SanType::URI("::%zz".try_into().unwrap());
            params.subject_alt_names.push(uri);
        })
        .looser(),
        named("exact name", "api.test", "api.test"),
        named("name in another case", "API.Test", "api.test"),
        named("wildcard", "*.api.test", "a.api.test"),
        named("wildcard above one label", "*.test", "api.test"),
        named("wildcard for two labels", "*.test", "a.api.test"),
        named("wildcard in a label", "a*.test", "api.test"),
        named("wildcard and a dot", "*.test", "api.test."),
        named(
            "dot in the certificate and in the name",
            "api.test.",
            "api.test.",
        ),
        named("dot in the certificate", "api.test.", "api.test"),
        named("dot in the name", "api.test", "api.test."),
        named("underscore", "my_api.test", "my_api.test"),
    ]
}

fn issuers() -> Vec<Form> {
    vec![
        issuer("CA that expired", |params| {
            params.not_after = (now() - HOUR / 2).into()
        }),
        issuer("CA of the future", |params| {
            params.not_before = (now() + HOUR / 2).into()
        }),
        issuer("CA without the right to sign", |params| {
            params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        }),
        issuer("CA without key usage", |params| params.key_usages = vec![]),
        issuer("CA without basic constraints", |params| {
            params.is_ca = IsCa::NoCa
        }),
        issuer("CA that is not a CA", |params| {
            params.is_ca = IsCa::ExplicitNoCa
        }),
        issuer("CA with a path length of zero", |params| {
            params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        }),
        issuer("CA with the usage clientAuth", |params| {
            params.extended_key_usages = vec![Purpose::ClientAuth];
        })
        .looser(),
        issuer("CA with critical policies", |params| {
            critical(params, POLICIES.0, POLICIES.1)
        }),
        issuer("CA for the network", |params| {
            let loopback =
                GeneralSubtree::IpAddress(rcgen::CidrSubnet::V4([127, 0, 0, 0], [255, 0, 0, 0]));
            let permitted_subtrees = vec![loopback, GeneralSubtree::DnsName("localhost".into())];
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees,
                excluded_subtrees: vec![],
            });
        }),
        issuer("CA for another network", |params| {
            let other =
                GeneralSubtree::IpAddress(rcgen::CidrSubnet::V4([10, 0, 0, 0], [255, 0, 0, 0]));
            params.name_constraints = Some(NameConstraints {
                permitted_subtrees: vec![other],
                excluded_subtrees: vec![],
            });
        }),
    ]
}

/// The server's own certificate, which the kubeconfig lists.
fn listed() -> Vec<Form> {
    let own = |name, change: fn(&mut CertificateParams)| {
        let mut params = leaf_params(&["127.0.0.1"]);
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().pem();
        served(
            name,
            "127.0.0.1",
            &certificate,
            &key.serialize_pem(),
            &certificate,
        )
    };
    let pinned = {
        let unknown = ca(ca_params("unknown"));
        let key = KeyPair::generate().unwrap();
        let leaf = leaf_params(&["127.0.0.1"])
            .signed_by(&key, &unknown)
            .unwrap()
            .pem();
        served(
            "listed certificate of an unknown CA",
            "127.0.0.1",
            &leaf,
            &key.serialize_pem(),
            &leaf,
        )
    };
    let signs_others = {
        let params = leaf_params(&["127.0.0.1"]);
        let key = KeyPair::generate().unwrap();
        let own = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let leaf = leaf_params(&["127.0.0.1"])
            .signed_by(&key, &issuer)
            .unwrap()
            .pem();
        served(
            "certificate of a listed one that is no CA",
            "127.0.0.1",
            &leaf,
            &key.serialize_pem(),
            &own,
        )
    };
    vec![
        own("listed certificate", |_| {}),
        own("listed certificate that is a CA", |params| {
            params.is_ca = ca_params("").is_ca
        }),
        own("listed certificate that expired", |params| {
            params.not_after = (now() - HOUR / 2).into()
        }),
        own("listed certificate for another name", |params| {
            params.subject_alt_names.clear()
        }),
        own("listed certificate for clients", |params| {
            params.extended_key_usages = vec![Purpose::ClientAuth];
        }),
        own("listed certificate for any usage", |params| {
            params.extended_key_usages = vec![Purpose::Any]
        }),
        pinned,
        signs_others,
    ]
}

fn chains() -> Vec<Form> {
    let chain =
        |name, change: fn(&mut CertificateParams), is_sent: bool, lists: fn(&Ca, &Ca) -> String| {
            let root = ca(ca_params("root"));
            let mut params = ca_params("intermediate");
            change(&mut params);
            let middle =
                CertifiedIssuer::signed_by(params, KeyPair::generate().unwrap(), &root).unwrap();
            let key = KeyPair::generate().unwrap();
            let leaf = leaf_params(&["127.0.0.1"])
                .signed_by(&key, &middle)
                .unwrap()
                .pem();
            let sent = if is_sent {
                format!("{leaf}{}", middle.pem())
            } else {
                leaf
            };
            served(
                name,
                "127.0.0.1",
                &sent,
                &key.serialize_pem(),
                &lists(&root, &middle),
            )
        };
    let root_only: fn(&Ca, &Ca) -> String = |root, _| root.pem();
    let middle_only: fn(&Ca, &Ca) -> String = |_, middle| middle.pem();
    vec![
        chain("intermediate", |_| {}, true, root_only),
        chain("intermediate that is not sent", |_| {}, false, root_only),
        chain(
            "intermediate in the kubeconfig",
            |_| {},
            false,
            |root, middle| root.pem() + &middle.pem(),
        ),
        chain(
            "only the intermediate in the kubeconfig",
            |_| {},
            false,
            middle_only,
        ),
        chain(
            "intermediate that expired",
            |params| params.not_after = (now() - HOUR / 2).into(),
            true,
            root_only,
        ),
        chain(
            "intermediate with critical policies",
            |params| critical(params, POLICIES.0, POLICIES.1),
            true,
            root_only,
        )
        .stricter("critical extension"),
        chain(
            "intermediate for clients",
            |params| params.extended_key_usages = vec![Purpose::ClientAuth],
            true,
            root_only,
        ),
        chain(
            "intermediate for any usage",
            |params| params.extended_key_usages = vec![Purpose::Any],
            true,
            root_only,
        ),
        chain(
            "intermediate that is not a CA",
            |params| params.is_ca = IsCa::ExplicitNoCa,
            true,
            root_only,
        ),
    ]
}

/// A server certificate with this number of intermediates.
fn deep(name: &'static str, count: usize) -> Form {
    let mut issuer = ca(ca_params("root"));
    let listed = issuer.pem();
    let mut sent = String::new();
    for number in 0..count {
        let params = ca_params(&format!("intermediate {number}"));
        let key = KeyPair::generate().unwrap();
        issuer = CertifiedIssuer::signed_by(params, key, &issuer).unwrap();
        sent = issuer.pem() + &sent;
    }
    let key = KeyPair::generate().unwrap();
    let leaf = leaf_params(&["127.0.0.1"]).signed_by(&key, &issuer);
    let sent = leaf.unwrap().pem() + &sent;
    served(name, "127.0.0.1", &sent, &key.serialize_pem(), &listed)
}
