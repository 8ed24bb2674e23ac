use super::*;

const DEADLINE: Duration = Duration::from_secs(10);

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

/// A client that keeps to the rules.
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
fn a_token_lives_from_a_second_to_six_hours() {
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
fn a_request_that_was_forwarded_gets_no_token() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);

    let put = client.http.put(format!("{}/latest/api/token", imds.url()));
    let put = put.header("X-aws-ec2-metadata-token-ttl-seconds", "60");
    let answer = put.header("X-Forwarded-For", "10.0.0.9").send().unwrap();

    assert_eq!(answer.status(), 403);
}

#[test]
fn nothing_is_read_without_a_token_of_this_instance_that_is_still_valid() {
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
fn it_serves_what_it_was_given_and_what_it_is_given_then() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);
    let token = client.token();
    let text = |path: &str| client.text(path, &token);
    let identity = "meta-data/identity-credentials/ec2/security-credentials/ec2-instance";

    assert_eq!(text("meta-data/placement/availability-zone"), "eu-west-1a");
    assert_eq!(text("meta-data/placement/region"), "eu-west-1");
    assert_eq!(text("meta-data/services/partition"), "aws");
    assert_eq!(text("meta-data/services/domain"), "amazonaws.com");
    assert_eq!(
        text("dynamic/instance-identity/document"),
        r#"{"instanceId" : "i-1"}"#
    );
    assert_eq!(
        text("dynamic/instance-identity/rsa2048"),
        "MIAGCSqGSIb3DQEHAqCA"
    );
    assert_eq!(text("meta-data/iam/security-credentials/"), "nodes");
    let credentials: serde_json::Value = serde_json::from_str(&text(identity)).unwrap();
    assert_eq!(credentials["Code"], "Success");
    assert_eq!(credentials["AccessKeyId"], "ASIA1");
    let credentials = text("meta-data/iam/security-credentials/nodes");
    assert!(credentials.contains("ASIA2"), "{credentials}");
    assert_eq!(
        client.code("meta-data/iam/security-credentials/others", &token),
        404
    );
    assert_eq!(client.code("user-data", &token), 404);

    imds.update(|instance| instance.identity_credentials = None);

    assert_eq!(client.code(identity, &token), 404);
}

#[test]
fn what_goes_wrong_goes_wrong_there_and_so_often() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);
    let token = client.token();
    let path = "meta-data/instance-id";
    let other = Imds::start(instance());
    let route = || Route::path(path);

    imds.inject(route(), Times::once(), Fault::Status(503));
    assert_eq!(client.code(path, &token), 503);
    imds.inject(route(), Times::once(), Fault::garbage());
    assert!(String::from_utf8(client.get(path, &token).unwrap().bytes().unwrap().into()).is_err());
    imds.inject(route(), Times::once(), Fault::Huge(10_000_000));
    assert_eq!(
        client.get(path, &token).unwrap().bytes().unwrap().len(),
        10_000_000
    );
    imds.inject(route(), Times::once(), Fault::Redirect { to: other.url() });
    let answer = client.get(path, &token).unwrap();
    assert_eq!(answer.status(), 302);
    let to = format!("{}/latest/{path}", other.url());
    assert_eq!(answer.headers()["location"], to.as_str());
    let every = Duration::from_millis(5);
    imds.inject(route(), Times::once(), Fault::Trickle { every });
    assert_eq!(client.text(path, &token), "i-1");
    imds.inject(route(), Times::once(), Fault::Cut);
    assert!(client.get(path, &token).is_err());
    imds.inject(route(), Times::always(), Fault::Status(404));
    assert_eq!(client.code("meta-data/placement/region", &token), 200);
    assert_eq!(client.code(path, &token), 404);
    imds.clear_faults();
    assert_eq!(client.text(path, &token), "i-1");
}

#[test]
fn what_hangs_is_recorded_and_never_answered() {
    let imds = Imds::start(instance());
    imds.inject(Route::token(), Times::always(), Fault::Hang);
    let client = Client::of(&imds);

    let put = client.http.put(format!("{}/latest/api/token", imds.url()));
    let answer = put.timeout(Duration::from_millis(50)).send();

    assert!(answer.unwrap_err().is_timeout());
    let requests = poll(DEADLINE, || {
        Some(imds.requests()).filter(|it| !it.is_empty())
    });
    assert_eq!(requests.unwrap()[0].code, None);
}

#[test]
fn it_can_be_down_and_come_up_again_on_the_same_port() {
    let imds = Imds::start(instance());
    let client = Client::of(&imds);
    let token = client.token();

    imds.go_down();
    let refused = client.get("meta-data/instance-id", &token).unwrap_err();
    assert!(refused.is_connect(), "{refused:?}");
    imds.come_up();

    assert_eq!(client.text("meta-data/instance-id", &token), "i-1");
}

#[test]
fn it_may_answer_late_in_its_first_moments() {
    let imds = Imds::start(instance());
    let up = Duration::from_millis(300);
    imds.answer_after(up);

    Client::of(&imds).token();

    assert!(imds.shared.started.elapsed() >= up);
}

#[test]
fn two_hundred_fit_into_one_process() {
    let services: Vec<Imds> = (0..200)
        .map(|number| {
            Imds::start(Instance::new(
                "eu-west-1",
                "eu-west-1a",
                &format!("i-{number}"),
            ))
        })
        .collect();
    let http = Client::of(&services[0]).http;

    for (number, imds) in services.iter().enumerate() {
        let client = Client {
            http: http.clone(),
            url: imds.url(),
        };
        let id = client.text("meta-data/instance-id", &client.token());
        assert_eq!(id, format!("i-{number}"));
    }
}

#[test]
fn no_secret_is_shown() {
    let shown = format!("{:?}", instance());

    assert!(
        !shown.contains("secret\"") && !shown.contains("session\""),
        "{shown}"
    );
    assert!(!shown.contains("ASIA"), "{shown}");
}
