//! The front server, which receives the calls to moto.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderName, USER_AGENT};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::calls::{Call, Failure, Scope};
use super::tpm::{self, NitroTpm};
use super::xml::{self, Field};
use super::{account_of, http};
use crate::api_server::Times;
use crate::serving::{Cut, Serving};

/// The header that contains the account of a call to moto.
pub(super) const ACCOUNT_HEADER: &str = "x-moto-account-id";

/// The header with the operation of a JSON call, such as `secretsmanager.GetSecretValue`. EC2 calls are forms, and do
/// not have this header.
const TARGET_HEADER: &str = "x-amz-target";

/// The type of a JSON call, and of its response.
const JSON: &str = "application/x-amz-json-1.1";

/// The running front server.
#[derive(Debug)]
pub(super) struct Front {
    serving: Serving,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    calls: Vec<Call>,
    failures: Vec<(Scope, Times, Failure)>,
    amended: Vec<(String, Field, String)>,
    hidden: Vec<String>,
    tpms: HashMap<String, NitroTpm>,
}

impl Front {
    pub(super) fn start(server: SocketAddr) -> Self {
        let shared = Arc::new(Shared {
            server,
            state: Mutex::default(),
        });
        let serving = Serving::start({
            let shared = shared.clone();
            move |listener| accept(listener, shared)
        });
        Self { serving, shared }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.serving.address()
    }

    pub(super) fn calls(&self) -> Vec<Call> {
        self.shared.lock().calls.clone()
    }

    pub(super) fn inject(&self, scope: Scope, times: Times, failure: Failure) {
        self.shared.lock().failures.push((scope, times, failure));
    }

    pub(super) fn amend(&self, instance: &str, field: Field, value: &str) {
        let amended = (instance.to_owned(), field, value.to_owned());
        self.shared.lock().amended.push(amended);
    }

    pub(super) fn give_tpm(&self, instance: &str, tpm: NitroTpm) {
        self.shared.lock().tpms.insert(instance.to_owned(), tpm);
    }

    pub(super) fn hide(&self, instance: &str) {
        self.shared.lock().hidden.push(instance.to_owned());
    }

    pub(super) fn restore(&self, instance: &str) {
        let mut state = self.shared.lock();
        state.hidden.retain(|hidden| hidden != instance);
        state.amended.retain(|(amended, ..)| amended != instance);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a call, and returns the failure to inject.
    fn arrived(&self, call: &Call) -> Option<Failure> {
        let mut state = self.lock();
        state.calls.push(call.clone());
        let mut failures = state.failures.iter_mut();
        failures.find_map(|(scope, times, failure)| {
            (scope.matches(call) && times.take()).then(|| failure.clone())
        })
    }

    fn correct(&self, mut body: String) -> String {
        let state = self.lock();
        for (instance, field, value) in &state.amended {
            xml::amend(&mut body, instance, *field, value);
        }
        for instance in &state.hidden {
            xml::remove(&mut body, instance);
        }
        body
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        tokio::spawn(async move {
            let service = service_fn(|request| serve(shared.clone(), request));
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

async fn serve(
    shared: Arc<Shared>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Cut> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
    let header = |name: HeaderName| {
        let value = head.headers.get(name);
        value
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let authorization = header(AUTHORIZATION);
    let target = header(HeaderName::from_static(TARGET_HEADER));
    let call = read(authorization, header(USER_AGENT), target, &body);
    match shared.arrived(&call) {
        None => {}
        Some(Failure::Error { status, code }) => return Ok(answer(status, error(code))),
        Some(Failure::Body(body)) => return Ok(answer(200, body)),
        Some(Failure::Cut) => return Err(Cut),
        Some(Failure::Delay(late)) => tokio::time::sleep(late).await,
        Some(Failure::Hang) => return std::future::pending().await,
    }
    if call.action == tpm::ACTION {
        return public_key(&shared, authorization, &call).await;
    }
    let posted = ask(&shared, authorization, &call.account, target, body).await?;
    Ok(if target.is_empty() {
        answer(posted.status, shared.correct(posted.body))
    } else {
        typed(posted.status, JSON, posted.body)
    })
}

/// Forwards a call to moto.
async fn ask(
    shared: &Shared,
    authorization: &str,
    account: &str,
    target: &str,
    body: Bytes,
) -> Result<http::Answer, Cut> {
    let server = shared.server;
    let [authorization, account, target] = [authorization, account, target].map(ToOwned::to_owned);
    let posted = tokio::task::spawn_blocking(move || {
        let mut headers = vec![("authorization", &*authorization)];
        if !account.is_empty() {
            headers.push((ACCOUNT_HEADER, &*account));
        }
        if !target.is_empty() {
            headers.extend([(TARGET_HEADER, &*target), (http::CONTENT_TYPE, JSON)]);
        }
        http::post(server, &headers, &body)
    });
    posted.await.map_err(|_| Cut)?.map_err(|_| Cut)
}

/// Answers a call to `GetInstanceTpmEkPub` instead of moto, which does not implement this action. The instance must
/// exist in moto in this account and region.
async fn public_key(
    shared: &Shared,
    authorization: &str,
    call: &Call,
) -> Result<Response<Full<Bytes>>, Cut> {
    let wanted = match tpm::Wanted::of(call) {
        Ok(wanted) => wanted,
        Err(refusal) => return Ok(answer(refusal.status, error(refusal.code))),
    };
    let described = ask(shared, authorization, &call.account, "", wanted.describe()).await?;
    if described.status != 200 {
        return Ok(answer(described.status, described.body));
    }
    let state = shared.lock();
    let hidden = state.hidden.contains(&wanted.instance);
    let tpm = state.tpms.get(&wanted.instance);
    Ok(match wanted.answer(tpm, hidden) {
        Ok(body) => answer(200, body),
        Err(refusal) => answer(refusal.status, error(refusal.code)),
    })
}

fn read(authorization: &str, user_agent: &str, target: &str, body: &[u8]) -> Call {
    let scope = authorization
        .split("Credential=")
        .nth(1)
        .unwrap_or_default();
    let mut scope = scope
        .split([',', ' '])
        .next()
        .unwrap_or_default()
        .split('/');
    let access_key = scope.next().unwrap_or_default();
    let mut next = |skip| scope.nth(skip).unwrap_or_default().to_owned();
    let (region, service) = (next(1), next(0));
    let form = if target.is_empty() { body } else { b"" };
    let parameters: Vec<_> = form_urlencoded::parse(form).into_owned().collect();
    let action = parameters.iter().find(|(name, _)| name == "Action");
    let operation = target.rsplit('.').next().unwrap_or_default();
    Call {
        action: action
            .map_or(operation, |(_, value)| value.as_str())
            .to_owned(),
        account: account_of(access_key).unwrap_or_default().to_owned(),
        region,
        service,
        user_agent: user_agent.to_owned(),
        parameters,
    }
}

fn error(code: &str) -> String {
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Response><Errors><Error><Code>{code}</Code>\
         <Message>by the test</Message></Error></Errors><RequestID>0</RequestID></Response>"
    )
}

fn answer(status: u16, body: String) -> Response<Full<Bytes>> {
    typed(status, "text/xml;charset=UTF-8", body)
}

fn typed(status: u16, kind: &str, body: String) -> Response<Full<Bytes>> {
    let answer = Response::builder()
        .status(status)
        .header(http::CONTENT_TYPE, kind)
        .body(Full::new(Bytes::from(body)));
    answer.expect("a test gives a status")
}
