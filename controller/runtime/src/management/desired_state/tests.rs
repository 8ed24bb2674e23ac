use k8s_openapi::ByteString;
use kubelet_attestation::kubeconfig::Refused;
use node_attestation_core::crd::{
    AutoApproveBindings, GuestReportedAddresses, KubeletAuthenticationSpec,
};
use node_attestation_core::serving::AddressRange;
use node_attestation_core::signer::InvalidCa;
use node_attestation_core::verifier::{
    InsecureVerifier, ParsedSettings, Verifier, VerifierUnavailable,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use serde_json::json;

use super::*;
use crate::capi::{CaRefused, KUBECONFIG_KEY, KubeconfigRefused, ObjectKey, OwnAttestors};
use crate::management::ca_key_registry::{CaKeyHolder, CaKeys};
use crate::management::configuration::InvalidSpec;

mod authentication;
mod commands;
mod external;
mod signing;
mod unchanged;
mod unreadable;

/// All inputs of a service. Each input is valid until a test changes it.
struct World {
    authentication: KubeletAuthentication,
    sources: Sources,
    keys: CaKeys,
    holder: CaKeyHolder,
    others: Vec<CaKeyHolder>,
    unavailable: Vec<VerifierUnavailable>,
    has_insecure: bool,
    of_attestors: Option<ParsedSettings>,
    settings: Settings,
}

fn key_of(cluster: &str) -> ObjectKey {
    ObjectKey {
        namespace: "tenant-a".to_owned(),
        name: cluster.to_owned(),
    }
}

fn secret(values: &[(&str, String)]) -> Observed<Arc<Secret>> {
    let data = values
        .iter()
        .map(|(field, value)| ((*field).to_owned(), ByteString(value.clone().into_bytes())));
    Observed::Present(Arc::new(Secret {
        data: Some(data.collect()),
        ..Secret::default()
    }))
}

/// A CA: the certificate and the key.
fn ca() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = params.self_signed(&key).unwrap().pem();
    (certificate, key.serialize_pem())
}

fn ca_secret((certificate, key): &(String, String)) -> Observed<Arc<Secret>> {
    secret(&[("tls.crt", certificate.clone()), ("tls.key", key.clone())])
}

fn kubeconfig(ca: &str, server: &str) -> Observed<Arc<Secret>> {
    let ca = data_encoding::BASE64.encode(ca.as_bytes());
    let text = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "a",
        "clusters": [{"name": "a", "cluster": {
            "server": server, "certificate-authority-data": ca,
        }}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {"token": "secret"}}],
    });
    secret(&[(KUBECONFIG_KEY, text.to_string())])
}

const SERVER: &str = "https://203.0.113.7:6443";

fn world() -> World {
    let spec = KubeletAuthenticationSpec::new("prod-1", &["insecure"]);
    let ca = ca();
    let keys = CaKeys::default();
    let cluster = Cluster {
        uid: "1".to_owned(),
        paused: false,
        deleting: false,
        watch_filter: None,
        endpoint: None,
        service_ranges: Vec::new(),
        infrastructure: None,
        control_plane: None,
        attestors: OwnAttestors::Unset,
    };
    World {
        authentication: KubeletAuthentication::new("prod-1", spec),
        sources: Sources {
            cluster: Observed::Present(cluster),
            kubeconfig: kubeconfig(&ca.0, SERVER),
            own_kubeconfig: None,
            ca: ca_secret(&ca),
            outdated: Outdated::default(),
        },
        holder: keys.holder(key_of("prod-1")),
        keys,
        others: Vec::new(),
        unavailable: Vec::new(),
        has_insecure: true,
        of_attestors: None,
        settings: Settings::default(),
    }
}

impl World {
    /// Another cluster with this CA.
    fn other(&self, namespace: &str, ca: &Observed<Arc<Secret>>) -> CaKeyHolder {
        let mut other = self.keys.holder(ObjectKey::new(namespace, "prod-2"));
        let ca = ClusterCa::from_secret(ca.present().unwrap()).unwrap();
        other.hold(Some(ClusterCaKey::of(&ca)));
        other
    }

    /// The certificate of the cluster's CA, without the private key.
    fn shown(&self) -> Observed<Arc<Secret>> {
        let secret = self.sources.ca.present().unwrap();
        let certificate = String::from_utf8(value(secret, "tls.crt").to_vec()).unwrap();
        self::secret(&[("tls.crt", certificate)])
    }

    fn plan(&mut self) -> Result<Option<Service>, NotReady> {
        self.plan_after(&mut Parsed::default())
    }

    fn plan_after(&mut self, parsed: &mut Parsed) -> Result<Option<Service>, NotReady> {
        let unavailable = self.unavailable.iter().cloned().map(Err);
        let insecure = self
            .has_insecure
            .then(|| -> Arc<dyn Verifier> { Arc::new(InsecureVerifier) });
        let mut verifiers: Verifiers = insecure.map(Ok).into_iter().chain(unavailable).collect();
        if let Some(settings) = &self.of_attestors {
            verifiers = verifiers.with_settings(settings.clone());
        }
        let verifiers = move |_: &KubeletAuthentication, _: &str| verifiers.clone();
        let authentication = Arc::new(KeptAuthentication::new(self.authentication.clone()));
        let inputs = Inputs {
            authentication: &authentication,
            sources: &self.sources,
            settings: &self.settings,
        };
        let held = inputs.ca_key(parsed);
        let shared = held.and_then(|HeldKey(key)| self.holder.compare(key));
        service(inputs, shared, parsed, &verifiers)
    }

    #[track_caller]
    fn why(&mut self) -> NotReady {
        self.plan().unwrap_err()
    }

    #[track_caller]
    fn fingerprint(&mut self) -> Fingerprint {
        self.plan().unwrap().unwrap().fingerprint
    }

    fn cluster(&mut self) -> &mut Cluster {
        match &mut self.sources.cluster {
            Observed::Present(cluster) => cluster,
            Observed::Unknown | Observed::Absent | Observed::Unreadable(_) => panic!("it is there"),
        }
    }

    fn pause(&mut self) {
        let annotations = &mut self.authentication.metadata.annotations;
        annotations
            .get_or_insert_default()
            .insert("cluster.x-k8s.io/paused".to_owned(), String::new());
    }
}

#[test]
fn a_valid_cluster_is_served() {
    let mut world = world();

    let service = world.plan().unwrap().unwrap();

    let configuration = service.configuration;
    assert_eq!(configuration.signer.ca_der(), service.ca.certificates()[0]);
    assert_eq!(configuration.audiences.len(), 1);
}

#[test]
fn a_cluster_has_no_plan_until_every_source_is_read() {
    let changes: [fn(&mut Sources); 3] = [
        |sources| sources.cluster = Observed::Unknown,
        |sources| sources.kubeconfig = Observed::Unknown,
        |sources| sources.ca = Observed::Unknown,
    ];
    for change in changes {
        let mut world = world();
        change(&mut world.sources);

        assert!(world.plan().unwrap().is_none());
    }
}

#[test]
fn the_message_about_a_shared_ca_names_no_cluster_of_another_namespace() {
    let mut world = world();
    for (namespace, expected) in [
        (
            "tenant-b",
            "a Cluster in another namespace has the private key",
        ),
        ("tenant-a", "Cluster prod-2 has the private key"),
    ] {
        let _other = world.other(namespace, &world.sources.ca);

        let why = world.why();

        assert_eq!(why.reason(), "SharedCA");
        let message = why.to_string();
        assert!(message.starts_with(expected), "{message}");
    }
}

/// A change that causes a problem in a cluster.
type Change = fn(&mut World);

/// Each problem is added to a cluster that already has all later problems. The reported problem is the one that an
/// operator must resolve first.
#[test]
fn the_first_of_several_problems_is_reported() {
    let mut world = world();
    let reasons: [(&str, Change); 11] = [
        ("CAKeyNotFound", |world| {
            let (certificate, _) = ca();
            world.sources.ca = secret(&[("tls.crt", certificate)]);
        }),
        ("SharedCA", |world| {
            let pair = ca();
            world.sources.ca = secret(&[("tls.crt", pair.0.clone())]);
            let other = world.other("tenant-b", &ca_secret(&pair));
            world.others.push(other);
        }),
        ("CAInvalid", |world| {
            world.sources.ca = secret(&[("tls.crt", "no certificate".to_owned())]);
        }),
        ("CANotFound", |world| world.sources.ca = Observed::Absent),
        ("KubeconfigRefused", |world| {
            let (certificate, _) = ca();
            world.sources.kubeconfig = kubeconfig(&certificate, "https://127.0.0.1:6443");
        }),
        ("KubeconfigNotFound", |world| {
            world.sources.kubeconfig = Observed::Absent;
        }),
        ("AttestorUnknown", |world| {
            world.has_insecure = false;
            world.unavailable = vec![VerifierUnavailable::Unknown("tpm".to_owned())];
        }),
        ("Paused", |world| world.cluster().paused = true),
        ("ClusterNotFound", |world| {
            world.sources.cluster = Observed::Absent;
        }),
        ("Paused", World::pause),
        ("Misnamed", |world| {
            world.authentication.metadata.name = Some("prod-2".to_owned());
        }),
    ];
    for (reason, obstruct) in reasons {
        obstruct(&mut world);

        assert_eq!(world.why().reason(), reason);
    }
}

#[test]
fn an_invalid_audience_is_reported() {
    let mut world = world();
    world.authentication.spec.audiences = vec!["no audience\n".to_owned()];

    let why = world.why();

    let NotReady::Spec(InvalidSpec::Audience(invalid)) = &why else {
        panic!("{why:?}");
    };
    assert_eq!(invalid.0, "no audience\n");
    assert_eq!(why.reason(), "AudienceInvalid");
}

#[test]
fn address_ranges_are_read() {
    let mut world = world();
    let service = world.plan().unwrap().unwrap();
    assert!(service.configuration.serving_address_ranges.is_empty());
    let texts = ["10.0.0.0/8", "2001:db8::/32"];
    world.authentication.spec.serving_address_ranges = texts.map(String::from).into();

    let service = world.plan().unwrap().unwrap();

    let expected: [AddressRange; 2] = texts.map(|text| text.parse().unwrap());
    assert_eq!(service.configuration.serving_address_ranges, expected);
}

/// The controller must not serve such a cluster. Otherwise, only the other ranges, or no range, would limit the
/// addresses.
#[test]
fn an_invalid_address_range_is_reported_at_every_position() {
    for text in [
        "10.0.0.1/8",
        "10.0.0.0",
        "",
        "::ffff:10.0.0.0/104",
        "all",
        "10.0.0.0/8,::/0",
    ] {
        for ranges in [vec![text], vec![text, "::/0"], vec!["0.0.0.0/0", text]] {
            let mut world = world();
            let ranges = ranges.into_iter().map(String::from);
            world.authentication.spec.serving_address_ranges = ranges.collect();

            let why = world.why();

            assert_eq!(why.reason(), "ServingAddressRangeInvalid");
            assert_eq!(
                why.to_string(),
                format!(
                    "spec.servingAddressRanges: {text:?} is invalid: an address range must have the form \
                     <network>/<prefix length>, without host bits and without IPv4-mapped IPv6, such as \
                     10.0.0.0/8 or 2001:db8::/32. Until it is corrected, the controller does not answer requests from the Cluster"
                )
            );
        }
    }
}

/// An earlier version of the definition accepted these settings.
#[test]
fn incompatible_stored_settings_are_named() {
    let mut world = world();
    let spec = &mut world.authentication.spec;
    spec.authorized_attestors = vec!["tpm".to_owned()];
    spec.guest_reported_addresses = GuestReportedAddresses::Allow;

    let why = world.why();

    assert_eq!(why.reason(), "SettingsInvalid");
    let said = why.to_string();
    assert!(
        said.starts_with("spec.guestReportedAddresses: without ranges"),
        "{said}"
    );

    world.authentication.spec.serving_address_ranges = vec!["10.0.0.0/8".to_owned()];
    assert!(world.plan().unwrap().is_some());
}

#[test]
fn a_key_that_does_not_match_the_ca_has_a_separate_reason() {
    let mut world = world();
    let (certificate, _) = ca();
    let (_, key) = ca();
    world.sources.ca = ca_secret(&(certificate, key));

    let why = world.why();

    let NotReady::CaRefused { source, .. } = &why else {
        panic!("{why:?}");
    };
    assert_eq!(source, &CaRefused::Invalid(InvalidCa::KeyMismatch));
    assert_eq!(why.reason(), "CAKeyMismatch");
}

#[test]
fn a_paused_cluster_still_holds_its_ca_key() {
    let mut world = world();
    world.pause();
    assert_eq!(world.why().reason(), "Paused");
    let ca = ClusterCa::from_secret(world.sources.ca.present().unwrap()).unwrap();

    let mut other = world.keys.holder(key_of("prod-2"));

    assert_eq!(
        other.hold(Some(ClusterCaKey::of(&ca))),
        Some(key_of("prod-1"))
    );
}

#[test]
fn a_cluster_without_its_ca_key_is_not_served_and_gets_remedies() {
    for bindings in [AutoApproveBindings::Report, AutoApproveBindings::Remove] {
        let mut world = world();
        world.authentication.spec.auto_approve_bindings = Some(bindings);
        let with_key = world.sources.ca.clone();
        let certificate = value(with_key.present().unwrap(), "tls.crt").to_vec();
        assert!(world.plan().unwrap().is_some(), "with its key");
        let certificate = String::from_utf8(certificate).unwrap();

        for key in [None, Some("")] {
            let key = key.map(|key| ("tls.key", key.to_owned()));
            let values: Vec<_> = [("tls.crt", certificate.clone())]
                .into_iter()
                .chain(key)
                .collect();
            world.sources.ca = secret(&values);
            let why = world.why();

            assert_eq!(why.reason(), "CAKeyNotFound");
            assert_eq!(
                why.to_string(),
                "Secret prod-1-ca has no tls.key, and the controller has no external signer, so the controller does not \
                 answer requests from the Cluster. Put the CA's key into the Secret, or start the controller with \
                 --signer-endpoint if another program holds the key"
            );
        }

        world.sources.ca = with_key;
        assert!(world.plan().unwrap().is_some(), "with its key again");
    }
}

#[test]
fn reported_problems_do_not_contain_secrets() {
    let mut world = world();
    world.sources.kubeconfig = secret(&[(KUBECONFIG_KEY, "users: [{secret-text".to_owned())]);

    let why = world.why();

    let refused = matches!(&why, NotReady::KubeconfigRefused { source: KubeconfigRefused::Invalid(invalid), .. }
        if invalid.why == Refused::Syntax);
    assert!(refused, "{why:?}");
    assert!(!why.to_string().contains("secret-text"), "{why}");
}

#[test]
fn every_used_field_changes_the_fingerprint() {
    let changes: [fn(&mut World); 6] = [
        |world| world.authentication.spec.audiences = vec![format!("sha256:{}", "0".repeat(64))],
        |world| world.authentication.spec.serving_address_ranges = vec!["10.0.0.0/8".to_owned()],
        |world| world.cluster().service_ranges = vec!["10.0.0.0/8".to_owned()],
        |world| {
            let (certificate, _) = ca();
            world.sources.kubeconfig = kubeconfig(&certificate, SERVER);
        },
        |world| world.sources.ca = ca_secret(&ca()),
        |world| world.authentication.metadata.uid = Some("again".to_owned()),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut world = world();
        let before = world.fingerprint();
        assert_eq!(world.fingerprint(), before);

        change(&mut world);

        assert_ne!(world.fingerprint(), before, "{number}");
    }
}

#[test]
fn an_unused_cluster_field_does_not_change_the_fingerprint() {
    let changes: [fn(&mut Cluster); 3] = [
        |cluster| cluster.watch_filter = Some("a".to_owned()),
        |cluster| cluster.deleting = true,
        |cluster| cluster.attestors = OwnAttestors::Named(vec!["aws".to_owned()]),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut world = world();
        let before = world.fingerprint();

        change(world.cluster());

        assert_eq!(world.fingerprint(), before, "{number}");
    }
}
