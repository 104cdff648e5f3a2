//! The client of the admin API: asks the running process, and turns its answer into a result or a failure.

use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, RequestBuilder};

use weir_runtime::secrets::SecretRef;

use super::{ConfigArgs, Failure, failure};
use crate::config::Config;
use crate::data::{DataFolder, Url};

/// Where the running process is asked.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct AdminArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// The admin API; without it, the one that the data folder tells.
    #[arg(long, value_name = "URL", env = "WEIR_ADMIN_URL")]
    admin_url: Option<String>,
    /// Its token; without it, the data folder's.
    #[arg(long, value_name = "TOKEN", env = "WEIR_ADMIN_TOKEN", hide_env_values = true)]
    admin_token: Option<String>,
}

/// Who acts, and why: on the log with the act.
#[derive(Debug, Clone, Args)]
pub(super) struct ActorArgs {
    /// Who does it.
    #[arg(long, env = "USER", default_value = "cli")]
    who: String,
    /// Why.
    #[arg(long, default_value = "")]
    why: String,
}

/// The same for what nobody may do without a reason.
#[derive(Debug, Clone, Args)]
pub(super) struct AnswerableArgs {
    /// Who does it.
    #[arg(long, env = "USER")]
    who: String,
    /// Why; on the log with the act.
    #[arg(long)]
    why: String,
}

/// An import of a hundred thousand reports takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// A pending list or a catalog; far above both.
const LARGEST_ANSWER_BYTES: u64 = 128 << 20;

/// The admin API of one process.
pub(super) struct Admin {
    agent: Agent,
    url: String,
    token: SecretString,
}

impl AdminArgs {
    /// The running process.
    pub fn connect(&self) -> Result<Admin, Failure> {
        let config = self.config.load()?;
        let data = DataFolder::existing(&config.process.data).ok();
        let told = || data.as_ref().and_then(|data| data.told(Url::Admin));
        let Some(url) = self.admin_url.clone().or_else(told) else {
            let folder = config.process.data.display();
            let message = format!(
                "no process runs on the data folder {folder}: start `weir up`, or name its admin API with --admin-url"
            );
            return Err(Failure::new(failure::MISSING, message));
        };
        let token = match &self.admin_token {
            Some(token) => SecretString::from(token.clone()),
            None => token_of(&config, data.as_ref())?,
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .timeout_global(Some(PATIENCE))
            .proxy(None)
            .build()
            .new_agent();
        Ok(Admin { agent, url: url.trim_end_matches('/').to_owned(), token })
    }

    /// The same where a process runs; `None` where none does.
    pub fn connect_if_running(&self) -> Result<Option<Admin>, Failure> {
        match self.connect() {
            Ok(admin) => Ok(admin.is_there().then_some(admin)),
            Err(failure) if failure.code() == failure::MISSING => Ok(None),
            Err(failure) => Err(failure),
        }
    }
}

fn token_of(config: &Config, data: Option<&DataFolder>) -> Result<SecretString, Failure> {
    let reference = match (&config.secrets.admin_token, data) {
        (Some(reference), _) => reference.clone(),
        (None, Some(data)) => SecretRef::File(data.secret("admin.token")),
        (None, None) => {
            let message =
                "no token for the admin API: give it with WEIR_ADMIN_TOKEN, or name the data folder with --data";
            return Err(Failure::new(failure::USAGE, message.to_owned()));
        }
    };
    reference.resolve().map_err(|error| Failure::usage(&error))
}

impl Admin {
    fn is_there(&self) -> bool {
        self.agent.get(format!("{}/admin/v1/health", self.url)).call().is_ok()
    }

    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.answer(self.prepared(self.agent.get(self.at(path)), query).call())
    }

    pub fn delete(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        self.answer(self.prepared(self.agent.delete(self.at(path)), query).call())
    }

    pub fn post(&self, path: &str, query: &[(&str, &str)], media_type: &str, body: &[u8]) -> Result<Value, Failure> {
        let request = self.prepared(self.agent.post(self.at(path)), query);
        self.answer(request.content_type(media_type).send(body))
    }

    /// For what takes as long as the log is, and goes on to its end also without this command.
    pub fn post_and_wait(&self, path: &str, query: &[(&str, &str)]) -> Result<Value, Failure> {
        let request = self.agent.post(self.at(path)).config().timeout_global(None).build();
        self.answer(self.prepared(request, query).send_empty())
    }

    fn at(&self, path: &str) -> String {
        format!("{}/admin/v1/{path}", self.url)
    }

    fn prepared<B>(&self, request: RequestBuilder<B>, query: &[(&str, &str)]) -> RequestBuilder<B> {
        let request = request.header("authorization", format!("Bearer {}", self.token.expose_secret()));
        request.query_pairs(query.iter().copied())
    }

    fn answer(&self, answer: Result<Response<Body>, ureq::Error>) -> Result<Value, Failure> {
        let silent = |error: &ureq::Error| {
            let url = &self.url;
            Failure::new(
                failure::MISSING,
                format!("{url} does not answer: {error}; start `weir up`, or name it with --admin-url"),
            )
        };
        let mut answer = answer.map_err(|error| silent(&error))?;
        let status = answer.status();
        let text = answer.body_mut().with_config().limit(LARGEST_ANSWER_BYTES).read_to_string();
        let text = text.map_err(|error| silent(&error))?;
        let value: Value = serde_json::from_str(&text).map_err(|_| {
            let message = format!("{} answered {status} and no JSON: it is no admin API of weir", self.url);
            Failure::new(failure::FAILED, message)
        })?;
        if status.is_success() { Ok(value) } else { Err(refusal(status, &value)) }
    }
}

/// The API's own words; they name the fix.
fn refusal(status: StatusCode, answer: &Value) -> Failure {
    let message = answer.pointer("/error/message").and_then(Value::as_str).unwrap_or("refused without a reason");
    let code = match status {
        StatusCode::NOT_FOUND | StatusCode::SERVICE_UNAVAILABLE => failure::MISSING,
        _ => failure::FAILED,
    };
    Failure::new(code, message.to_owned())
}

impl ActorArgs {
    pub fn query(&self) -> [(&str, &str); 2] {
        [("who", self.who.as_str()), ("why", self.why.as_str())]
    }
}

impl AnswerableArgs {
    pub fn query(&self) -> [(&str, &str); 2] {
        [("who", self.who.as_str()), ("why", self.why.as_str())]
    }
}
