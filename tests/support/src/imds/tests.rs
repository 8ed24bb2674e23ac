use super::*;

const DEADLINE: Duration = Duration::from_secs(60);

fn credentials(id: &str) -> Credentials {
    Credentials {
        access_key_id: id.to_owned(),
        secret_access_key: "secret".to_owned(),
        session_token: "session".to_owned(),
        expiration: crate::clock::now(),
    }
}

fn instance() -> Instance {
    Instance {
        document: br#"{"instanceId" : "i-1"}"#.to_vec(),
        rsa2048: "MIAGCSqGSIb3DQEHAqCA".to_owned(),
        identity_credentials: Some(credentials("ASIA1")),
        profile: Some(Profile {
            role: "nodes".to_owned(),
            credentials: credentials("ASIA2"),
        }),
        ..Instance::new("eu-west-1", "eu-west-1a", "i-1")
    }
}

/// A client that follows the protocol.
struct Client {
    http: reqwest::blocking::Client,
    url: String,
}

impl Client {
    fn of(imds: &Imds) -> Self {
        let http = reqwest::blocking::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(DEADLINE)
            .tls_backend_preconfigured(no_tls())
            .build()
            .unwrap();
        Self {
            http,
            url: imds.url(),
        }
    }

    fn put(&self, ttl: Option<&str>) -> reqwest::blocking::Response {
        let request = self.http.put(format!("{}/latest/api/token", self.url));
        let request = ttl.iter().fold(request, |request, ttl| {
            request.header("X-aws-ec2-metadata-token-ttl-seconds", *ttl)
        });
        request.send().unwrap()
    }

    fn token(&self) -> String {
        self.put(Some("60")).text().unwrap()
    }

    fn get(&self, path: &str, token: &str) -> reqwest::Result<reqwest::blocking::Response> {
        let request = self.http.get(format!("{}/latest/{path}", self.url));
        request.header("X-aws-ec2-metadata-token", token).send()
    }

    fn code(&self, path: &str, token: &str) -> u16 {
        self.get(path, token).unwrap().status().as_u16()
    }

    fn text(&self, path: &str, token: &str) -> String {
        self.get(path, token).unwrap().text().unwrap()
    }
}

fn no_tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth()
}

#[test]
fn a_metadata_token_lives_from_1_second_to_6_hours() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);

    for (ttl, code) in [
        (Some("1"), 200),
        (Some("21600"), 200),
        (Some("0"), 400),
        (Some("21601"), 400),
        (Some("-1"), 400),
        (Some("soon"), 400),
        (None, 400),
    ] {
        assert_eq!(client.put(ttl).status(), code, "{ttl:?}");
    }
    assert_eq!(imds.tokens(), 7);
}

#[test]
fn a_forwarded_request_gets_no_metadata_token() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);

    let put = client.http.put(format!("{}/latest/api/token", imds.url()));
    let put = put.header("X-aws-ec2-metadata-token-ttl-seconds", "60");
    let answer = put.header("X-Forwarded-For", "10.0.0.9").send().unwrap();

    assert_eq!(answer.status(), 403);
}

#[test]
fn metadata_is_read_only_with_a_valid_token_of_the_instance() {
    let (imds, other) = (Imds::start(instance()), Imds::start(instance()));
    let client = Client::of(&imds);
    let token = client.token();
    let path = "meta-data/instance-id";

    assert_eq!(client.text(path, &token), "i-1");
    assert_eq!(client.code(path, ""), 401);
    assert_eq!(client.code(path, &Client::of(&other).token()), 401);
    imds.expire_tokens();
    assert_eq!(client.code(path, &token), 401);

    let seen: Vec<_> = imds.requests().into_iter().collect();
    let seen: Vec<_> = seen.iter().map(|it| (it.authorized, it.code)).collect();
    assert_eq!(
        seen,
        [
            (false, Some(200)),
            (true, Some(200)),
            (false, Some(401)),
            (false, Some(401)),
            (false, Some(401))
        ]
    );
}

#[test]
fn debug_output_of_an_instance_contains_no_secret() {
    let shown = format!("{:?}", instance());

    assert!(
        !shown.contains("secret\"") && !shown.contains("session\""),
        "{shown}"
    );
    assert!(!shown.contains("ASIA"), "{shown}");
}

#[test]
fn a_metadata_directory_lists_its_values_in_each_version() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);
    let token = client.token();

    for (path, names) in [
        ("meta-data/placement/", "availability-zone\nregion"),
        ("dynamic", "instance-identity/"),
        ("dynamic/instance-identity", "document\nrsa2048"),
    ] {
        assert_eq!(client.text(path, &token), names);
    }
    let listed = client.text("meta-data/", &token);
    assert!(listed.contains("local-ipv4\nplacement/\n"), "{listed}");
    assert!(!listed.contains("ipv6"), "{listed}");
    assert_eq!(client.code("meta-data/place", &token), 404);
    for (version, code) in [
        ("2021-03-23", 200),
        ("2009-04-04", 200),
        ("2021-03-24", 404),
    ] {
        let url = format!("{}/{version}/meta-data/instance-id", imds.url());
        let request = client.http.get(url);
        let answer = request.header("X-aws-ec2-metadata-token", &token).send();
        assert_eq!(answer.unwrap().status(), code, "{version}");
    }
}

#[test]
fn an_instance_has_the_names_and_the_addresses_of_its_network() {
    for (network, local_hostname, has_ipv4) in [
        (
            Network::AddressNames,
            "ip-10-0-0-1.eu-west-1.compute.internal",
            true,
        ),
        (
            Network::Domain("corp.test."),
            "ip-10-0-0-1.corp.test.",
            true,
        ),
        (Network::Domain(""), "ip-10-0-0-1", true),
        (
            Network::ResourceNames,
            "i-1.eu-west-1.compute.internal",
            true,
        ),
        (Network::Ipv6Only, "i-1.eu-west-1.compute.internal", false),
    ] {
        let imds = Imds::start(instance());
        imds.update(|instance| instance.join_network(network));
        let client = Client::of(&imds);
        let token = client.token();

        let name = client.text("meta-data/local-hostname", &token);
        assert_eq!(name, local_hostname);
        let (four, six) = if has_ipv4 { (200, 404) } else { (404, 200) };
        assert_eq!(client.code("meta-data/local-ipv4", &token), four);
        assert_eq!(client.code("meta-data/ipv6", &token), six);
    }
}
