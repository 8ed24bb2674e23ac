//! Tests of endpoints, authorities and proxies from the operator's settings.

use kubelet_authenticator_test_support::connect_proxy::ConnectProxy;
use kubelet_authenticator_test_support::sts::Sts as Service;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::super::settings::InvalidStsSettings;
use super::fixture::*;

#[test]
fn invalid_sts_settings_are_refused() {
    let service = Service::start();
    let refused = |change: &dyn Fn(&mut StsSettings)| {
        let mut settings = settings(&service);
        change(&mut settings);
        Sts::new(settings).unwrap_err()
    };

    for region in ["xx-west-1", "eu-west-1.evil.test", ""] {
        assert!(matches!(
            refused(&|settings| {
                let host = "sts.internal".parse().unwrap();
                settings.endpoints.insert(region.into(), host);
            }),
            InvalidStsSettings::Region(named) if named == region
        ));
    }
    for pem in ["", "garbage", "-----BEGIN CERTIFICATE-----\nAAAA\n"] {
        assert!(
            matches!(
                refused(&|settings| settings.authorities = Some(pem.into())),
                InvalidStsSettings::Authorities
            ),
            "{pem}"
        );
    }
    for proxy in ["https://proxy.test:3128", "socks5://proxy.test", "http://"] {
        let error = refused(&|settings| settings.proxy.https = Some(proxy.into()));
        assert!(matches!(error, InvalidStsSettings::Proxy(_)), "{proxy}");
    }
}

#[test]
fn the_trusted_cas_come_from_the_system_or_the_operator() {
    let service = Service::start();
    let own = settings(&service).authorities;
    let system = CertificateDer::from_pem_slice(service.ca_pem().as_bytes()).unwrap();
    for (system, own, is_valid) in [
        (Some(&system), own.clone(), true),
        (Some(&system), None, true),
        (None, own, true),
        (None, None, false),
    ] {
        let settings = StsSettings {
            authorities: own,
            ..StsSettings::default()
        };
        let client = settings.client_with(system.into_iter().cloned().collect());
        match client {
            Ok(_) => assert!(is_valid),
            Err(error) => assert!(
                !is_valid && matches!(error, InvalidStsSettings::NoAuthorities),
                "{error}"
            ),
        }
    }
}

#[tokio::test]
async fn sts_is_called_through_the_proxy_unless_its_host_is_excluded() {
    let proxy = ConnectProxy::start();
    for (no, through) in [
        (None, true),
        (Some("example.test"), true),
        (Some("127.0.0.1"), false),
    ] {
        let bed = Bed::with(|settings| {
            settings.proxy = Proxy {
                https: Some(proxy.url()),
                no: no.map(Into::into),
            };
        });
        let before = proxy.connects().len();

        bed.verify(&bed.instance()).await.unwrap();

        let expected = if through {
            vec![bed.service.host()]
        } else {
            Vec::new()
        };
        assert_eq!(proxy.connects()[before..], expected, "{no:?}");
    }
}

#[tokio::test]
async fn the_operator_ca_is_not_trusted_for_a_public_sts_endpoint() {
    let mut bed = Bed::start();
    let proxy = ConnectProxy::leading_to(bed.service.address());
    let proxied = |settings: &mut StsSettings| {
        settings.endpoints.clear();
        settings.proxy.https = Some(proxy.url());
    };
    let mut public = settings(&bed.service);
    proxied(&mut public);
    bed.verifier = Sts::new(public.clone()).unwrap();
    let host = "sts.eu-west-1.amazonaws.com";
    let mut node = bed.instance();
    node.host = host.into();

    let said = outage(bed.verify(&node).await);

    assert!(said.contains("cannot reach STS"), "{said}");
    assert_eq!(bed.outcomes(), [""; 0]);
    assert_eq!(proxy.connects(), [format!("{host}:443")]);

    // If the operator configures the same host as an endpoint, it is accepted.
    let named = host.parse().unwrap();
    public.endpoints.insert(REGION.into(), named);
    bed.verifier = Sts::new(public).unwrap();
    bed.verify(&node).await.unwrap();
    assert_eq!(bed.outcomes(), ["OK"]);
}

#[tokio::test]
async fn a_proxy_password_from_the_url_is_sent() {
    let proxy = ConnectProxy::asking_for("Basic dXNlcjpodW50ZXIy");
    let through = |url: String| Bed::with(|settings| settings.proxy.https = Some(url));

    let bed = through(proxy.url());
    let said = outage(bed.verify(&bed.instance()).await);
    assert!(said.contains("cannot reach STS"), "{said}");

    let bed = through(proxy.url().replace("://", "://user:hunter2@"));
    bed.verify(&bed.instance()).await.unwrap();
    assert_eq!(proxy.connects(), [bed.service.host()]);
}

#[tokio::test]
async fn an_empty_proxy_variable_means_no_proxy() {
    let bed = Bed::with(|settings| settings.proxy.https = Some(String::new()));

    bed.verify(&bed.instance()).await.unwrap();
}

#[test]
fn a_proxy_password_is_not_shown() {
    let proxy = Proxy {
        https: Some("http://user:hunter2@proxy.test".into()),
        no: None,
    };

    assert!(!format!("{proxy:?}").contains("hunter2"));
}
