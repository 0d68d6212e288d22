#include "data/json.h"

namespace troupe::data {

tl::unexpected<Error> JsonView::error(ErrorCode code, std::string_view sentence) const {
  return fail(code, path_.empty() ? std::string(sentence) : path_ + " " + std::string(sentence), file_);
}

tl::unexpected<Error> JsonView::wrong_type(std::string_view wanted) const {
  return error(ErrorCode::kCorrupt, "must be " + std::string(wanted) + ", not " +
                                        (value_->is_null() ? "null" : std::string("of type ") + value_->type_name()));
}

std::optional<JsonView> JsonView::find(const std::string& key) const {
  if (!value_->is_object()) return std::nullopt;
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  return JsonView(*it, file_, path_.empty() ? key : path_ + "." + key);
}

Result<JsonView> JsonView::at(const std::string& key) const {
  TROUPE_TRY_STATUS(require_object());
  if (auto member = find(key)) return *member;
  return error(ErrorCode::kCorrupt, (path_.empty() ? "has no '" : "lacks '") + key + "'");
}

JsonView JsonView::element(std::size_t index) const {
  return JsonView((*value_)[index], file_, path_ + "[" + std::to_string(index) + "]");
}

Result<std::string> JsonView::string() const {
  if (!value_->is_string()) return wrong_type("a string");
  return value_->get<std::string>();
}

Result<bool> JsonView::boolean() const {
  if (!value_->is_boolean()) return wrong_type("true or false");
  return value_->get<bool>();
}

Result<std::int64_t> JsonView::integer(std::int64_t min, std::int64_t max) const {
  if (!value_->is_number_integer()) return wrong_type("an integer");
  const bool too_big =
      value_->is_number_unsigned() && value_->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  if (too_big || value_->get<std::int64_t>() < min || value_->get<std::int64_t>() > max)
    return error(ErrorCode::kCorrupt,
                 "is " + value_->dump() + ", outside " + std::to_string(min) + ".." + std::to_string(max));
  return value_->get<std::int64_t>();
}

Status JsonView::require_object() const {
  if (!value_->is_object()) return wrong_type("an object");
  return {};
}

Result<std::size_t> JsonView::array_size() const {
  if (!value_->is_array()) return wrong_type("a list");
  return value_->size();
}

Result<bool> JsonView::boolean_or(const std::string& key, bool otherwise) const {
  const auto member = find(key);
  return member ? member->boolean() : Result<bool>(otherwise);
}

Result<std::string> JsonView::string_or(const std::string& key, std::string otherwise) const {
  const auto member = find(key);
  return member ? member->string() : Result<std::string>(std::move(otherwise));
}

} // namespace troupe::data
