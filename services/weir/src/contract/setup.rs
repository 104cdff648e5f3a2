//! What must be configured on the gateway under test, and in the words of some gateways.
//!
//! A clause's model is asked for under the name that it has at the provider, so that a gateway which passes names through
//! needs no list of them; only fallbacks do.

use std::fmt::Write as _;

use super::clauses::{ALL, Clause, Policy};
use super::pair::{Pair, ProviderApi};

/// The names of a clause's two models at the provider; clients ask for the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    pub first: String,
    pub second: String,
    pub policy: Policy,
}

impl Names {
    pub fn of(clause: &Clause, pair: Pair) -> Self {
        let first = format!("contract-{}-{pair}", clause.id);
        Self { second: format!("{first}-b"), first, policy: clause.policy() }
    }

    /// Those of requests between the clauses, which nothing befalls.
    pub fn healthy(pair: Pair) -> Self {
        let first = format!("contract-healthy-{pair}");
        Self { second: format!("{first}-b"), first, policy: Policy::USUAL }
    }
}

/// Never configured.
pub(super) const REFUSED_MODEL: &str = "contract-refused";

/// Whose configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// A `catalog.toml` of Weir, without tenants and keys.
    Weir,
    /// The `config.yaml` of LiteLLM's proxy.
    Litellm,
    /// JSON: each model with its provider's API, its fallback, and the addresses.
    Json,
}

/// What the operator of any gateway must know.
pub const WHAT_TO_CONFIGURE: &str = "\
Configure the gateway under test like this (`--setup` prints it for some gateways):
  1. one provider of OpenAI's API and one of Anthropic's, both at the stub: URL/v1, with any key
  2. each model of `--setup json` by its own name; where it fails before content, the model of the same name with
     `-b` takes over. A gateway that passes names through needs nothing for the first, only the fallback
  3. the wait for the first content: 2 seconds, for the next bytes: 1 second, or what `--setup json` says; for
     connecting: 1 second. A status and signs of life for who waits, where there are such: after 3 seconds, every half second
  4. going on with a broken stream, where there is such: for the models that `--setup json` names, and no others
  5. one key that may use these models. The model `contract-refused` must not be offered
Many gateways limit retries to a share of their requests, so a dozen healthy ones go before each clause that takes one.";

/// The configuration for these pairs, with a stub at `stub_url`.
#[must_use]
pub fn configuration(format: Format, pairs: &[Pair], stub_url: &str) -> String {
    let base_url = format!("{}/v1", stub_url.trim_end_matches('/').trim_end_matches("/v1"));
    let of_clauses = |pair: &Pair| {
        let pair = *pair;
        ALL.iter().filter(move |clause| (clause.applies)(pair)).map(move |clause| (pair, Names::of(clause, pair)))
    };
    let healthy = |pair: &Pair| (*pair, Names::healthy(*pair));
    let models: Vec<_> = pairs.iter().flat_map(|pair| of_clauses(pair).chain([healthy(pair)])).collect();
    match format {
        Format::Weir => weir(&models, &base_url),
        Format::Litellm => litellm(&models, &base_url),
        Format::Json => json(&models, &base_url),
    }
}

fn weir(models: &[(Pair, Names)], base_url: &str) -> String {
    let mut toml = String::from(
        "# What `weir contract` asks for. Add a tenant and a key, or use those that there are; and in weir.toml\n\
             # [gateway]\n# status_after = \"3s\"\n# keep_alive_every = \"500ms\"\n",
    );
    for api in [ProviderApi::OpenAi, ProviderApi::Anthropic] {
        put(
            &mut toml,
            format_args!(
                "\n[[provider]]\nid = \"contract-{0}\"\ndialect = \"{0}\"\nbase_url = \"{base_url}\"\n\
                 credential = \"env:WEIR_CONTRACT_PROVIDER_KEY\"  # any text\n",
                api.name()
            ),
        );
    }
    toml.push_str(
        "\n[[price]]\nname = \"contract\"\n[[price.terms]]\n\
         rates = { \"in.uncached\" = \"1\", \"in.cache_read\" = \"1\", \"out.visible\" = \"2\" }\n",
    );
    for (pair, names) in models {
        for name in [&names.first, &names.second] {
            put(
                &mut toml,
                format_args!(
                    "\n[[deployment]]\nid = \"{name}\"\nprovider = \"contract-{}\"\nmodel = \"{name}\"\n\
                     price = \"contract\"\nmax_output_tokens = 4096\n",
                    pair.provider.name()
                ),
            );
        }
        let goes_on = if names.policy.goes_on {
            "stream_failure = { mode = \"continue\", on = [\"transport_error\"] }\n"
        } else {
            ""
        };
        put(
            &mut toml,
            format_args!(
                "\n[[model]]\nname = \"{0}\"\ntiers = [[\"{0}\"], [\"{1}\"]]\n\
                 deadlines = {{ connect = \"1s\", first_content = \"{2}s\", idle = \"{3}s\" }}\n{goes_on}",
                names.first, names.second, names.policy.first_content_s, names.policy.idle_s
            ),
        );
    }
    toml
}

fn litellm(models: &[(Pair, Names)], base_url: &str) -> String {
    let origin = base_url.trim_end_matches("/v1");
    let mut yaml = String::from("model_list:\n");
    for (pair, names) in models {
        let (prefix, base) = match pair.provider {
            ProviderApi::OpenAi => ("openai", base_url),
            // It adds `/v1/messages` by itself.
            ProviderApi::Anthropic => ("anthropic", origin),
        };
        for name in [&names.first, &names.second] {
            put(
                &mut yaml,
                format_args!(
                    "  - model_name: {name}\n    litellm_params: {{ model: {prefix}/{name}, api_base: \"{base}\", \
                     api_key: any, timeout: 5, stream_timeout: 1 }}\n"
                ),
            );
        }
    }
    yaml.push_str("litellm_settings:\n  num_retries: 0\n  fallbacks:\n");
    for (_, names) in models {
        put(&mut yaml, format_args!("    - {{ {}: [{}] }}\n", names.first, names.second));
    }
    yaml
}

fn json(models: &[(Pair, Names)], base_url: &str) -> String {
    let model = |(pair, names): &(Pair, Names)| {
        serde_json::json!({
            "model": names.first, "fallback": names.second, "provider_api": pair.provider.name(),
            "client_api": pair.client.name(), "first_content_s": names.policy.first_content_s,
            "idle_s": names.policy.idle_s,
            "goes_on": names.policy.goes_on,
        })
    };
    let models: Vec<_> = models.iter().map(model).collect();
    let all = serde_json::json!({"provider_base_url": base_url, "never_offered": REFUSED_MODEL, "models": models});
    format!("{all:#}\n")
}

/// Writing to a string cannot fail.
fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    let _written = out.write_fmt(text).is_ok();
}
