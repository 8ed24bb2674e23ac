//! The CEL rules in a schema (`x-kubernetes-validations`), which are evaluated as in the API server for a new object.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, ExecutionError, Program, Value};
use ipnet::IpNet;
use regex_lite::Regex;
use serde_json::Value as Json;

use super::{Fault, schema};

/// The name of the previous value in a rule about changes. A value in a file does not have a previous value.
const FORMER: &str = "oldSelf";

/// A rule in a schema.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rule<'a> {
    pub(super) expression: &'a str,
    pub(super) message: &'a str,
    /// The field that the error refers to, relative to the value, with a leading dot. Can be the empty text.
    field: &'a str,
}

impl<'a> Rule<'a> {
    pub(super) fn compiled(self) -> Compiled<'a> {
        let program = Program::compile(self.expression).map_err(|error| error.to_string());
        Compiled {
            rule: self,
            program,
        }
    }
}

/// A compiled rule.
pub(super) struct Compiled<'a> {
    rule: Rule<'a>,
    program: Result<Program, String>,
}

impl Compiled<'_> {
    /// The fault. `None` if the value at this path satisfies the rule.
    pub(super) fn fault(&self, value: &Json, path: &str) -> Option<Fault> {
        let program = self.program.as_ref().map_err(Clone::clone);
        let message = match program.and_then(|program| holds(program, value)) {
            Ok(true) => return None,
            Ok(false) => self.rule.message.to_owned(),
            // Tests evaluate all of this project's rules, so this error does not occur. If a value cannot be checked,
            // it is rejected.
            Err(error) => format!("cannot be checked: {error}"),
        };
        let field = format!("{path}{}", self.rule.field);
        Some(Fault::new(field.trim_start_matches('.'), message))
    }
}

/// The rules in this part of a schema that apply to a new object.
pub(super) fn of(schema: &Json) -> impl Iterator<Item = Rule<'_>> {
    let rules = schema.get("x-kubernetes-validations");
    let rules = rules.and_then(Json::as_array).into_iter().flatten();
    let rules = rules.map(|rule| {
        let text = |key| rule.get(key).and_then(Json::as_str).unwrap_or_default();
        Rule {
            expression: text("rule"),
            message: text("message"),
            field: text("fieldPath"),
        }
    });
    rules.filter(|rule| !rule.expression.contains(FORMER))
}

/// Checks the value and all nested values. Their types must match the schema.
pub(super) fn check(schema: &Json, value: &Json, faults: &mut Vec<Fault>) {
    check_at(schema, value, "", faults);
}

fn check_at(schema: &Json, value: &Json, path: &str, faults: &mut Vec<Fault>) {
    faults.extend(of(schema).filter_map(|rule| rule.compiled().fault(value, path)));
    for (path, schema, value) in schema::parts(schema, value, path) {
        check_at(schema, value, &path, faults);
    }
}

/// Whether the value satisfies the rule.
fn holds(program: &Program, value: &Json) -> Result<bool, String> {
    let mut context = Context::default();
    let added = [
        context.add_function("matches", matches),
        context.add_function("isCIDR", |text: Arc<String>| network(&text).is_some()),
        context.add_function("cidr", |text: Arc<String>| canonical(&text)),
        context.add_function("masked", masked),
        context.add_function("sum", sum),
    ];
    for added in added {
        added.map_err(|error| error.to_string())?;
    }
    context.add_variable_from_value("self", to_cel(value));
    match program.execute(&context) {
        Ok(Value::Bool(holds)) => Ok(holds),
        Ok(_) => Err("the rule does not return true or false".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the interpreter gives functions their arguments by value"
)]
fn matches(This(text): This<Arc<String>>, pattern: Arc<String>) -> bool {
    Regex::new(&pattern).is_ok_and(|pattern| pattern.is_match(&text))
}

/// Parses the network in the form that Kubernetes' `isCIDR` accepts: without zones, leading zeros or IPv4-mapped
/// addresses.
fn network(text: &str) -> Option<IpNet> {
    let (address, length) = text.split_once('/')?;
    // `IpNet` itself accepts leading zeros.
    let address: IpAddr = address.parse().ok()?;
    let network = IpNet::new(address, length.parse().ok()?).ok()?;
    let is_short = length == network.prefix_len().to_string();
    (is_short && address.to_canonical() == address).then_some(network)
}

/// A CEL value that is equal for equal networks. It is used instead of the type of Kubernetes' `cidr`.
fn canonical(text: &str) -> String {
    network(text).map_or_else(String::new, |network| network.to_string())
}

fn masked(This(text): This<Arc<String>>) -> String {
    network(&text).map_or_else(String::new, |network| network.trunc().to_string())
}

/// The sum of a list of integers, as in Kubernetes' `sum`.
fn sum(This(list): This<Value>) -> Result<i64, ExecutionError> {
    let error = || ExecutionError::function_error("sum", "not a list of integers");
    let Value::List(items) = list else {
        return Err(error());
    };
    let numbers = items.iter().map(|item| {
        let Value::Int(number) = item else {
            return Err(error());
        };
        Ok(*number)
    });
    numbers.sum()
}

fn to_cel(value: &Json) -> Value {
    match value {
        Json::Null => Value::Null,
        Json::Bool(value) => (*value).into(),
        Json::Number(number) => match number.as_i64() {
            Some(integer) => integer.into(),
            None => number.as_f64().unwrap_or_default().into(),
        },
        Json::String(text) => text.as_str().into(),
        Json::Array(items) => items.iter().map(to_cel).collect::<Vec<_>>().into(),
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), to_cel(value)));
            fields.collect::<HashMap<_, _>>().into()
        }
    }
}
