"""Users' rules from a YAML file."""

from __future__ import annotations

from pathlib import Path

from prefect_heteroflow.core.user_rules import UserRule, parse_user_rules


def load_user_rules(path: str | Path) -> tuple[UserRule, ...]:
    """The rules of a YAML file with the lists `stop_on` and `retry_on`.

    ```yaml
    stop_on:
      - AssertionError
    retry_on:
      - Checkpoint not found
      - pattern: /CUDA driver .{0,40} reset/
        class: GpuHardwareError
      - pattern: connection pool is full
        passive: true
    ```

    Raises:
        ValueError: The file cannot be read, is not YAML, or has a rule that is not valid.
    """
    import yaml

    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"The rules file {file} cannot be read ({error}). Give the path of a YAML file."
        ) from None
    except yaml.YAMLError as error:
        raise ValueError(f"The rules file {file} is not valid YAML: {error}") from None
    if content is None:
        return ()
    if not isinstance(content, dict) or set(content) - {"stop_on", "retry_on"}:
        raise ValueError(
            f"The rules file {file} must hold a mapping with the lists `stop_on` and `retry_on` "
            "and nothing else. Move the rules under one of these names."
        )
    return (
        *parse_user_rules(content.get("stop_on"), default="stop", source=f"{file.name}:stop_on"),
        *parse_user_rules(content.get("retry_on"), default="retry", source=f"{file.name}:retry_on"),
    )
